package integration

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(envVictim); url != "" {
		victim(url) // this process will be killed
		return
	}
	if url := os.Getenv(envLeaseVictim); url != "" {
		leaseVictim(url)
		return
	}
	if url := os.Getenv(envOrderVictim); url != "" {
		orderVictim(url)
		return
	}
	if url := os.Getenv(envReplayVictim); url != "" {
		replayVictim(url)
		return
	}
	if url := os.Getenv(envExactlyVictim); url != "" {
		exactlyVictim(url)
		return
	}
	if url := os.Getenv(envReceivedVictim); url != "" {
		receivedVictim(url)
		return
	}
	// Each plan takes some 50 ms. The command line can override this.
	for name, value := range map[string]string{"rapid.checks": "40", "rapid.shrinktime": "2m"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	// pgx asks the server to cancel the query of a closed connection, for up to 15 s in a separate goroutine. That is
	// longer than the networks that tests cut exist.
	testenv.Main(m, goleak.IgnoreAnyFunction("github.com/jackc/pgx/v5/pgconn.(*PgConn).CancelRequest"))
}
