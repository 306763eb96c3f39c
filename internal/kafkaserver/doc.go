// Package kafkaserver runs a private Apache Kafka: one process that is broker
// and controller, on ports of 127.0.0.1, with its data in a directory of its
// own. It is there for tests and benchmarks, which may kill it, freeze it and
// start it again.
//
// It needs a Java runtime of version 17 or newer and Kafka's jars, which
// scripts/setup fetches into .cache/kafka/lib of the checkout.
//
// A shell process watches over each server: when the process that started it
// dies, however it dies, the server is killed and its directory removed.
package kafkaserver
