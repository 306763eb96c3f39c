// Package plainserver runs private servers that are one program each and want
// no more than a port and a directory: Redis, NATS, PgBouncer. They listen on 127.0.0.1
// and are there for tests and benchmarks, which may kill them, freeze them and
// start them again with the same port and data.
//
// A shell process watches over each server: when the process that started it
// dies, however it dies, the server is killed and its directory removed.
package plainserver
