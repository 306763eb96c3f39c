package outbox_test

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestOnlyTransactions: code that could write an event outside the transaction of
// its business change does not compile.
func TestOnlyTransactions(t *testing.T) {
	t.Parallel()
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", exports(t))
	check := func(param, call string) error {
		source := fmt.Sprintf(`package p
			import (
				"context"
				"database/sql"
				"github.com/jackc/pgx/v5"
				"github.com/jackc/pgx/v5/pgxpool"
				"github.com/notifyd/notifyd/outbox"
			)
			var (_ *sql.DB; _ pgx.Tx; _ *pgxpool.Pool)
			func f(ctx context.Context, x %s, e outbox.Event) error { return outbox.%s }`, param, call)
		file, err := parser.ParseFile(fset, "p.go", source, 0)
		if err != nil {
			return err
		}
		conf := types.Config{Importer: imports, GoVersion: "go1.26"}
		_, err = conf.Check("p", fset, []*ast.File{file}, nil)
		return err
	}
	const (
		write    = "Write(ctx, x, e)"
		writeSQL = "WriteSQL(ctx, x, e)"
	)
	for _, c := range []struct {
		param, call string
		refused     string // part of the error; empty: it compiles
	}{
		{"pgx.Tx", write, ""},
		{"pgx.Tx", `WriteTo(ctx, x, "relay", e)`, ""},
		{"*pgxpool.Tx", write, ""},
		{"struct{ pgx.Tx }", write, ""},
		{"*sql.Tx", writeSQL, ""},
		{"*sql.Tx", `WriteSQLTo(ctx, x, "relay", e)`, ""},
		{"struct{ *sql.Tx }", writeSQL, ""},
		{"*pgxpool.Pool", write, "*pgxpool.Pool of x does not match"},
		{"*pgxpool.Conn", write, "*pgxpool.Conn of x does not match"},
		{"*pgx.Conn", write, "*pgx.Conn of x does not match"},
		{"*sql.DB", writeSQL, "Rollback"},
		{"*sql.Conn", writeSQL, "Rollback"},
		{"*sql.DB", write, "*sql.DB of x does not match"},
		{"*sql.Tx", write, "*sql.Tx of x does not match"},
		{"pgx.Tx", writeSQL, "ExecContext"},
	} {
		err := check(c.param, c.call)
		switch {
		case c.refused == "" && err != nil:
			t.Errorf("%s with %s: %v", c.call, c.param, err)
		case c.refused != "" && err == nil:
			t.Errorf("%s with %s compiles", c.call, c.param)
		case c.refused != "" && !strings.Contains(err.Error(), c.refused):
			t.Errorf("%s with %s: %v, want %q", c.call, c.param, err, c.refused)
		}
	}
}

// exports finds the compiler's export data of packages.
func exports(tb testing.TB) importer.Lookup {
	tb.Helper()
	out, err := exec.CommandContext(tb.Context(), "go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}",
		".", "database/sql", "github.com/jackc/pgx/v5/pgxpool").Output()
	if err != nil {
		tb.Fatal(err)
	}
	files := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[path] = file
	}
	return func(path string) (io.ReadCloser, error) { return os.Open(files[path]) }
}
