// Package rabbitserver runs throw-away RabbitMQ nodes for tests and benchmarks, with the
// installed programs and with ports and data of their own, beside other nodes of the
// machine.
//
// Everything listens on 127.0.0.1: the broker, the distribution port of Erlang,
// and an epmd for this node alone.
package rabbitserver
