// Package privateserver runs throw-away servers on ports of 127.0.0.1, each with a separate directory, for tests and the
// bench. A server can be killed, frozen, and started again with the same ports and data.
//
// A [Program] describes one kind of server. This package describes those that Debian has, such as Redis and PgBouncer. PostgreSQL, Kafka and
// RabbitMQ need more than a port and a directory, and have packages below this one. Nothing here installs a server:
// package pginstall installs PostgreSQL, and scripts/setup the others.
//
// # How a server ends when its owner is killed
//
// Every server has a watchdog: a ten-line /bin/sh that reads a pipe whose other end only this process holds. When the
// process dies, even by SIGKILL, the kernel closes the pipe, and the watchdog ends the server and removes its directory.
// The alternative, Linux's Pdeathsig, is tied to the thread that forked, so that each server would need a thread. macOS
// does not have it. And it would leave the data behind.
//
// # Which account runs a server
//
// Some servers refuse to run as root. If this process is root, another [Account] runs them. That account owns the files
// that [Server.MakeDir] and [Server.WriteFile] create. The directory above, with the log, still belongs to root.
package privateserver
