package testenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestMain(m *testing.M) { Main(m) }

// fakeTB records how a test ended.
type fakeTB struct {
	testing.TB
	end, text string
}

func (f *fakeTB) Helper() {}

func (f *fakeTB) Fatalf(format string, args ...any) {
	f.end, f.text = "failed", fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (f *fakeTB) Skipf(format string, args ...any) {
	f.end, f.text = "skipped", fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestRequired(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		list, name string
		want       bool
	}{
		{"", "postgres", false},
		{"all", "postgres", true},
		{"postgres", "postgres", true},
		{"redis,postgres", "postgres", true},
		{"redis", "postgres", false},
		{"postgresql", "postgres", false},
	} {
		if got := required(c.list, c.name); got != c.want {
			t.Errorf("required(%q, %q) = %t, want %t", c.list, c.name, got, c.want)
		}
	}
}

// TestRequireEndsTheTest cannot run in parallel: it sets the environment.
func TestRequireEndsTheTest(t *testing.T) { //nolint:paralleltest // see above
	for list, want := range map[string]string{"": "skipped", "all": "failed"} {
		t.Setenv(EnvRequire, list)
		var f fakeTB
		done := make(chan struct{})
		go func() {
			defer close(done)
			require(&f, "rabbitmq", nil)
			require(&f, "rabbitmq", errors.New("not installed"))
			f.end = "went on"
		}()
		<-done
		if f.end != want || !strings.Contains(f.text, "rabbitmq") || !strings.Contains(f.text, "not installed") {
			t.Errorf("with %s=%q the test %s (%s), want %s", EnvRequire, list, f.end, f.text, want)
		}
	}
}

func TestLong(t *testing.T) { //nolint:tparallel // the end of the case is waited for
	t.Parallel()
	var skipped bool
	t.Run("case", func(t *testing.T) {
		defer func() { skipped = t.Skipped() }()
		Long(t)
	})
	if want := testing.Short() && os.Getenv(EnvRequire) != "all"; skipped != want {
		t.Errorf("skipped %t, want %t", skipped, want)
	}
}

// TestDatabase checks the cleanup of its subtest, which must not run in parallel.
func TestDatabase(t *testing.T) { //nolint:tparallel // see above
	t.Parallel()
	var urls [2]string
	t.Run("Two/Ä databases", func(t *testing.T) {
		for i := range urls {
			urls[i] = Database(t)
			conn, err := pgx.Connect(t.Context(), urls[i])
			if err != nil {
				t.Fatal(err)
			}
			// Still connected when the database is dropped.
			t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
			if _, err := conn.Exec(t.Context(), "CREATE TABLE outbox (id int)"); err != nil {
				t.Error(err)
			}
		}
	})
	if urls[0] == urls[1] {
		t.Errorf("both databases are %s", urls[0])
	}
	for _, url := range urls {
		if conn, err := pgx.Connect(t.Context(), url); err == nil {
			t.Errorf("%s still exists", url)
			_ = conn.Close(t.Context())
		}
	}
}

func TestOwnPostgresIsAnother(t *testing.T) {
	t.Parallel()
	own := OwnPostgres(t, map[string]string{"max_connections": "20"})
	if own.URL("") == Postgres(t).URL("") {
		t.Fatal("OwnPostgres returned the shared server")
	}
	if err := own.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := own.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), own.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context()) //nolint:errcheck // the test is over
	var n string
	if err := conn.QueryRow(t.Context(), "SHOW max_connections").Scan(&n); err != nil || n != "20" {
		t.Errorf("max_connections = %s, %v; want 20", n, err)
	}
}

func TestExternalServer(t *testing.T) {
	t.Parallel()
	s, err := newExternal("postgres://me:s%3Acret@db:5433/admin?sslmode=require")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.URL(""), "postgres://me:s%3Acret@db:5433/admin?sslmode=require"; got != want {
		t.Errorf("URL() = %s, want %s", got, want)
	}
	if got, want := s.URL("t_x"), "postgres://me:s%3Acret@db:5433/t_x?sslmode=require"; got != want {
		t.Errorf("URL(t_x) = %s, want %s", got, want)
	}
	for _, raw := range []string{"host=db password=secret", "http://me:secret@db", "postgres://me:secret@db:port"} {
		if _, err := newExternal(raw); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("newExternal(%s) = %v, want an error without the password", raw, err)
		}
	}
}

func TestDatabaseName(t *testing.T) {
	t.Parallel()
	a, b := databaseName("TestÜber/"+strings.Repeat("x", 80)), databaseName("T")
	if len(a) != 63 || !strings.HasPrefix(a, "t_test_ber_xxx") {
		t.Errorf("name = %s with %d bytes, want 63", a, len(a))
	}
	if c := databaseName("T"); b == c {
		t.Errorf("the same name twice: %s", c)
	}
}

func TestFreePort(t *testing.T) {
	t.Parallel()
	port := FreePort(t)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
