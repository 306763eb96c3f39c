// Package pgserver runs a private, throw-away PostgreSQL: for the bench, the
// tests, and by cmd/with for make demo.
//
// # How the server ends when this process does not end well
//
// Every server has a watchdog, a ten-line /bin/sh that reads a pipe whose other
// end only this process holds. When the process dies, even by SIGKILL, the
// kernel closes the pipe, and the watchdog ends the server and removes its
// directory. Linux's Pdeathsig was the alternative. It is tied to the thread
// that forked, so that a thread would have to be kept for each server; macOS
// does not have it; and it leaves the data behind.
//
// # Who can connect
//
// The server listens on 127.0.0.1 and on a socket that only its own account can
// reach, and asks for no password. Whoever can run programs on this machine can
// therefore connect as superuser: it is for data that may be lost and seen.
//
// # Which account runs it
//
// PostgreSQL refuses to run as root. For root the package picks an unprivileged
// account (postgres, else nobody) and hands it the data directory only; the
// directory above it, with the log, stays root's.
package pgserver
