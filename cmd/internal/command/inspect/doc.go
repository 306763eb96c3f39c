// Package inspect has the commands that show the state of a relay and its tables: status, doctor and healthcheck.
package inspect
