// Package capture has the command capture: tables whose changes become events.
package capture
