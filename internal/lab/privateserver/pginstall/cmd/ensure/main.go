// Command ensure finds a PostgreSQL server program on this machine, or installs one, and
// prints its directory.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/notifyd/notifyd/internal/lab/privateserver/pginstall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	binDir, err := pginstall.Ensure(ctx, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "ensure:", err)
		os.Exit(1)
	}
	fmt.Println(binDir)
}
