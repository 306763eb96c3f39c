package integration

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// readmeProgram has the snippets of README.md in place of WRITE, HANDLE and MAIL.
const readmeProgram = `package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/email"
	"github.com/notifyd/notifyd/outbox"
	outboxsql "github.com/notifyd/notifyd/sql"
)

type shelf struct{ stop func() }

func (s shelf) Reserve(_ context.Context, id int64, payload json.RawMessage) error {
	fmt.Printf("reserved for event %d: %s\n", id, payload)
	s.stop()
	return nil
}

func write(ctx context.Context, tx pgx.Tx, order any) (err error) {
WRITE
	return err
}

func handle(ctx context.Context, pool *pgxpool.Pool, warehouse shelf) (err error) {
HANDLE
	return err
}

func mails(relay *notifyd.Relay) (err error) {
MAIL
	return err
}

func run() error {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := outboxsql.MigratePool(ctx, pool); err != nil {
		return err
	}
	if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		return write(ctx, tx, map[string]int{"order": 1042})
	}); err != nil {
		return err
	}
	relay, err := notifyd.New(pool, notifyd.Config{})
	if err != nil {
		return err
	}
	if err := mails(relay); err != nil {
		return err
	}
	return handle(ctx, pool, shelf{stop})
}

func main() {
	if err := run(); err != nil {
		panic(err)
	}
}
`

// TestReadmeIsExample compiles the Go of README.md into one program, and runs it: one half writes
// an event, the other half handles it.
func TestReadmeIsExample(t *testing.T) {
	t.Parallel()
	database := testenv.Database(t)
	page, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(blocks) != 3 {
		t.Fatalf("README.md has %d blocks of Go: give the fourth a place in the program", len(blocks))
	}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	program, overlay := filepath.Join(dir, "main.go"), filepath.Join(dir, "overlay.json")
	place, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(root, "internal", "readme", "main.go"): program}})
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{
		program: strings.NewReplacer("WRITE", blocks[0][1], "HANDLE", blocks[1][1], "MAIL", blocks[2][1]).Replace(readmeProgram), overlay: string(place),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"run", "-overlay", overlay, "./internal/readme"}
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		args = slices.Insert(args, 1, "-race") // its imports are compiled already
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "DATABASE_URL="+database, "SMTP_PASSWORD=hunter2")
	var says strings.Builder
	cmd.Stderr = &says
	out, err := cmd.Output()
	if err != nil || string(out) != "reserved for event 1: {\"order\":1042}\n" {
		t.Errorf("%v, it prints %q\n%s", err, out, says.String())
	}
}
