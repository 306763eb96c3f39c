// Package rabbitserver runs throw-away RabbitMQ nodes for tests and benchmarks:
// real ones, of the programs that a distribution installs, on ports and data of
// their own, beside any other node of the machine.
//
// Everything listens on 127.0.0.1: the broker, the distribution port of Erlang,
// and an epmd for this node alone. A node does not outlive the process that
// started it, not even one that was killed: a small shell script waits at the
// end of a pipe for that, kills the node and removes its data.
package rabbitserver
