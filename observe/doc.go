// Package observe has the figures of a relay: [Stats], which the relay counts itself, and
// [Backlog], which the tables tell. Relay.Stats and Relay.Backlog return them; package
// metrics offers them to Prometheus.
package observe
