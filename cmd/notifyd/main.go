// Command notifyd delivers events from a PostgreSQL outbox table to
// destinations, and has the tools around that.
package main

import (
	"context"
	"os"

	"github.com/notifyd/notifyd/internal/cli"
)

//go:generate go run ../internal/describe ../.. ../internal/config/descriptions.json
//go:generate sh -c "go run . config schema > ../../docs/notifyd.schema.json"
//go:generate go run . config reference ../../docs/configuration.md
//go:generate go test . -run ^TestChartChecksConfig$ -update
//go:generate go test ../../scripts -run ^TestNumberOfModules$ -update-modules

func main() {
	cli.TuneGC()
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr, os.LookupEnv))
}
