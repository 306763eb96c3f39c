// Package rabbitserver runs throw-away RabbitMQ nodes for tests and benchmarks:
// real ones, of the programs that a distribution installs, on ports and data of
// their own, beside any other node of the machine.
//
// Everything listens on 127.0.0.1: the broker, the distribution port of Erlang,
// and an epmd for this node alone.
package rabbitserver
