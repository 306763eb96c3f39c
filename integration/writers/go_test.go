//go:build testall

package writers

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestGo runs the programs with the ORMs of Go, which are a module of their own.
func TestGo(t *testing.T) {
	t.Parallel()
	p := program{dir: "go", command: []string{filepath.Join(t.TempDir(), "orders")}}
	compiler := testenv.Program(t, "go")
	for _, command := range [][]string{{compiler, "generate", "."}, {compiler, "build", "-o", p.command[0], "."}} {
		if out, err := p.start(t, nil, command...); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	p.run(t, "gorm", "bun", "sqlc", "ent")
}

// TestGoBlocks requires each block of Go of docs/writers.md to be part of the program that TestGo runs.
func TestGoBlocks(t *testing.T) {
	t.Parallel()
	blocks, code := blocksOf(t, "docs/writers.md", "go"), testenv.ReadFile(t, "go/orders.go")
	for _, block := range blocks {
		if !strings.Contains(code, block) {
			t.Errorf("go/orders.go does not contain:\n%s", block)
		}
	}
	if len(blocks) != 5 {
		t.Errorf("%d blocks of Go", len(blocks))
	}
}

// TestDotNet has the server parse the INSERTs of the programs that do not run here, for the role
// of a writer.
func TestDotNet(t *testing.T) {
	t.Parallel()
	s := newShop(t, newRole(t), outboxsql.ModeQueue)
	conn, err := pgx.Connect(t.Context(), s.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context()) //nolint:errcheck // it only prepares
	blocks := blocksOf(t, "docs/writers.md", "csharp")
	for i, block := range blocks {
		statement := regexp.MustCompile(`(?s)INSERT INTO outbox_events.*?VALUES \(.*?\)("|\n)`).FindString(block)
		n := 0
		statement = regexp.MustCompile(`\{[^{}]*\}`).ReplaceAllStringFunc(strings.TrimSuffix(statement, `"`), func(string) string { n++; return fmt.Sprint("$", n) })
		if _, err := conn.Prepare(t.Context(), fmt.Sprint("insert", i), statement); statement == "" || err != nil {
			t.Errorf("%q: %v in\n%s", statement, err, block)
		}
	}
	if len(blocks) != 2 {
		t.Errorf("%d blocks of C#", len(blocks))
	}
}
