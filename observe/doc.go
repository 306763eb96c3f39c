// Package observe has the figures of a relay: [Stats], which the relay counts itself, and
// [Backlog], which is read from the tables. Relay.Stats and Relay.Backlog return them; package
// metrics exports them to Prometheus.
package observe
