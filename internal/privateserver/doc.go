// Package privateserver runs throw-away servers on ports of 127.0.0.1, each with
// a directory of its own, for the tests and the bench. They may be
// killed, frozen, and started again with the same ports and the same data.
//
// A [Program] says how to run one kind of server. Redis, NATS and PgBouncer are
// described here; PostgreSQL, Kafka and RabbitMQ, which need more than a port and
// a directory, have a package each below this one. Nothing here installs a
// server: package pginstall does that for PostgreSQL, and scripts/setup for the
// others.
//
// # How a server ends when its owner is killed
//
// Every server has a watchdog, a ten-line /bin/sh that reads a pipe whose other
// end only this process holds. When the process dies, even by SIGKILL, the
// kernel closes the pipe, and the watchdog ends the server and removes its
// directory. Linux's Pdeathsig was the alternative. It is tied to the thread
// that forked, so that a thread would have to be kept for each server; macOS
// does not have it; and it leaves the data behind.
//
// # Which account runs a server
//
// Some servers refuse to run as root. For those an [Account] stands in when we
// are root. It owns what [Server.MakeDir] and [Server.WriteFile] make; the
// directory above, with the log, stays root's.
package privateserver
