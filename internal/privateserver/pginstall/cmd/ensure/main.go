// Command ensure makes sure that this machine has a PostgreSQL server program,
// installs one where it has not, and prints the directory that holds it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/notifyd/notifyd/internal/privateserver/pginstall"
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
