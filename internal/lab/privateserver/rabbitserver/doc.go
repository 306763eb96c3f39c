// Package rabbitserver runs throw-away RabbitMQ nodes for tests and benchmarks. It uses the installed programs, with
// separate ports and data, so that other nodes of the machine are not affected.
//
// Everything listens on 127.0.0.1: the broker, the distribution port of Erlang, and an epmd for this node alone.
package rabbitserver
