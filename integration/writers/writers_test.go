//go:build testall

// Package writers runs the programs of docs/writers.md, docs/testing.md and README.md that write
// events in other languages than Go, and those with the ORMs of Go.
package writers

import (
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	outboxsql "github.com/notifyd/notifyd/sql"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// program is how a language runs its programs.
type program struct {
	dir     string
	command []string // is given a URL for each database
	url     func(string) string
}

// run has the programs write into a queue and into a stream, one process for both, and looks at
// what came of it.
func (p program) run(t *testing.T, names ...string) {
	t.Helper()
	role := newRole(t)
	shops := []*shop{newShop(t, role, outboxsql.ModeQueue), newShop(t, role, outboxsql.ModeStream)}
	command := p.command
	for _, s := range shops {
		s.deliver(t)
		u := s.url
		if p.url != nil {
			u = p.url(u)
		}
		command = append(command, u)
	}
	if out, err := p.start(t, nil, command...); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, s := range shops {
		s.check(t, names)
	}
}

// passes runs the tests of docs/testing.md, and again where events get lost: then they have to fail.
func (p program) passes(t *testing.T, env []string, command ...string) {
	t.Helper()
	s := newShop(t, newRole(t), outboxsql.ModeStream)
	owner := s.owner
	if p.url != nil {
		owner = p.url(owner)
	}
	env = append(env, "DATABASE_URL="+owner)
	if out, err := p.start(t, env, command...); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := s.pool.Exec(t.Context(), `TRUNCATE orders`); err != nil {
		t.Error(err)
	}
	s.lose(t)
	var exit *exec.ExitError
	if out, err := p.start(t, env, command...); !errors.As(err, &exit) {
		t.Errorf("the tests do not notice that an event is missing: %v\n%s", err, out)
	}
}

// start runs a command in the directory, and returns its output.
func (p program) start(t *testing.T, env []string, command ...string) (out []byte, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), env...)
	return cmd.CombinedOutput()
}

// library returns the path of what scripts/writers/setup has fetched for a language. Without it
// the test is skipped, or fails if the language is required.
func library(t *testing.T, language string, parts ...string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(append([]string{root, ".cache", "writers", language}, parts...)...))
	if err == nil {
		_, err = os.Stat(path)
	}
	testenv.Need(t, language, err)
	return path
}

func TestPython(t *testing.T) {
	t.Parallel()
	python := library(t, "python", "bin", "python")
	p := program{dir: workplace(t, "python", "python"), command: []string{python, "main.py"}}
	readme(t, filepath.Join(p.dir, "readme.py"), "python")
	p.run(t, "psycopg", "readme", "sqlalchemy", "django")
	p.passes(t, nil, python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_orders.py")
}

func TestNode(t *testing.T) {
	t.Parallel()
	node, modules := testenv.Program(t, "node"), library(t, "node", "node_modules")
	p := program{dir: workplace(t, "node", "js", "prisma"), command: []string{node, "main.js"}}
	readme(t, filepath.Join(p.dir, "readme.js"), "js")
	if err := os.Symlink(modules, filepath.Join(p.dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	// What generates the client asks for a program that it does not run, and would download it.
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	quiet := []string{"PRISMA_SCHEMA_ENGINE_BINARY=" + self, "CHECKPOINT_DISABLE=1", "PRISMA_HIDE_UPDATE_MESSAGE=1"}
	if out, err := p.start(t, quiet, node, "node_modules/prisma/build/index.js", "generate", "--schema", "schema.prisma"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	p.run(t, "pg", "readme", "drizzle", "prisma")
	p.passes(t, nil, node, "--experimental-vm-modules", "node_modules/jest/bin/jest.js", "orders.test.js")
}

func TestJava(t *testing.T) {
	t.Parallel()
	java, javac, jars := testenv.Program(t, "java"), testenv.Program(t, "javac"), library(t, "java")
	p := program{dir: workplace(t, "java", "java"), url: func(raw string) string {
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		query := u.Query()
		query.Set("user", u.User.Username())
		if password, is := u.User.Password(); is {
			query.Set("password", password)
		}
		u.User, u.RawQuery, u.Scheme = nil, query.Encode(), "postgresql"
		return "jdbc:" + u.String()
	}}
	readme(t, filepath.Join(p.dir, "Readme.java"), "java")
	sources, err := filepath.Glob(filepath.Join(p.dir, "*.java"))
	if err != nil {
		t.Fatal(err)
	}
	path := p.dir + string(filepath.ListSeparator) + filepath.Join(jars, "*")
	// Spring looks for the names of parameters.
	if out, err := p.start(t, nil, append([]string{javac, "-parameters", "-proc:none", "-cp", path, "-d", p.dir}, sources...)...); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	p.command = []string{java, "-XX:TieredStopAtLevel=1", "-cp", path, "Main"}
	p.run(t, "jdbc", "readme", "spring", "hibernate")
	p.passes(t, nil, java, "-XX:TieredStopAtLevel=1", "-cp", path, "org.junit.platform.console.ConsoleLauncher", "execute", "--select-class", "OrdersTest")
}

func TestRuby(t *testing.T) {
	t.Parallel()
	ruby := testenv.Program(t, "ruby")
	out, err := exec.CommandContext(t.Context(), ruby, "-e", `require "active_record"; require "pg"`).CombinedOutput()
	if err != nil {
		testenv.Need(t, "ruby", errors.New("ActiveRecord or pg is missing: "+string(out)))
	}
	program{dir: workplace(t, "ruby", "ruby"), command: []string{ruby, "main.rb"}}.run(t, "activerecord")
}
