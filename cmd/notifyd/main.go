// Command notifyd delivers events from a PostgreSQL outbox table to
// destinations, and has the tools around that.
package main

import (
	"context"
	"os"
	"runtime/debug"
)

//go:generate sh -c "go run . config schema > ../../docs/notifyd.schema.json"

// gcPercent lets the heap grow to three times what is live before it is
// collected. notifyd's heap is small, some 10 MiB under load, and collecting it
// less often is worth a tenth of the CPU time of a drain; $GOGC wins.
const gcPercent = 200

func main() {
	if _, set := os.LookupEnv("GOGC"); !set {
		debug.SetGCPercent(gcPercent)
	}
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr, os.LookupEnv))
}
