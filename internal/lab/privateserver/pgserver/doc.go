// Package pgserver runs a private PostgreSQL, for the bench, the tests and, by
// pginstall/cmd/with, make demo.
//
// The server listens on 127.0.0.1 and on a socket that only its own account can reach, and
// asks for no password. Every user of this machine can therefore connect as superuser: the
// server is for data that may be lost and seen.
package pgserver
