package outboxtest_test

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

func testTx(t *testing.T) pgx.Tx {
	t.Helper()
	return testdb.Begin(t, database(t, "public", outboxsql.ModeQueue), pgx.TxOptions{})
}

func testPool(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := database(t, "public", outboxsql.ModeStream)
	run(t, pool, "*", func(context.Context, *delivery.Event) error { return nil })
	return pool
}

// TestTestingPage requires each block of Go of docs/testing.md to be part of the example.
func TestTestingPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/testing.md")
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(page), "```go\n")[1:]
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "```")
		if !strings.Contains(strings.ReplaceAll(string(code), "\tt.Parallel()\n", ""), block) {
			t.Errorf("no test contains:\n%s", block)
		}
	}
	if len(blocks) != 3 {
		t.Errorf("%d blocks of Go", len(blocks))
	}
}
