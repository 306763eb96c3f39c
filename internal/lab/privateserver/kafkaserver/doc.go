// Package kafkaserver runs a private Apache Kafka, one process that is broker and
// controller, for tests and benchmarks.
//
// It needs a Java runtime of version 17 or newer and Kafka's jars, which
// scripts/setup fetches into .cache/kafka/lib of the checkout.
package kafkaserver
