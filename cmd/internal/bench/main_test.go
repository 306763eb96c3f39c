package bench

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestMain is also the relay's process: Insert, Soak and Takeover start this test binary.
func TestMain(m *testing.M) {
	if order := os.Getenv(EnvRelay); order != "" {
		if err := Serve(context.Background(), os.Stdin, os.Stdout, slog.New(slog.NewTextHandler(os.Stderr, nil)), order); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	testenv.Main(m)
}
