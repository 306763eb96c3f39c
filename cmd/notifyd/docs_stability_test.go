package main

import (
	"context"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/cmd/internal/destinations"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestStabilityPage: docs/stability.md names every public package, command, exit code and table, each once, and no other.
func TestStabilityPage(t *testing.T) {
	t.Parallel()
	page := testenv.ReadFile(t, root+"docs/stability.md")
	sections := make(map[string]string)
	for _, s := range strings.Split(page, "\n## ")[1:] {
		title, text, _ := strings.Cut(s, "\n")
		sections[title] = text
	}
	quoted := func(text string) (all []string) {
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(text, -1) {
			all = append(all, m[1])
		}
		return all
	}
	compare := func(what string, got, want []string) {
		t.Helper()
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: the page has\n%q\nand there are\n%q", what, got, want)
		}
	}

	// In rows, the names of packages are in the first cell.
	var packages, tables, codes []string
	cell := func(section string) (cells []string) {
		for _, m := range regexp.MustCompile(`(?m)^\| ([^|]+) \|`).FindAllStringSubmatch(sections[section], -1) {
			cells = append(cells, m[1])
		}
		return cells
	}
	for _, c := range cell("Go packages") {
		packages = append(packages, quoted(c)...)
	}
	for _, c := range cell("Tables") {
		tables = append(tables, quoted(c)...)
	}
	for _, c := range cell("Commands") {
		if _, err := strconv.Atoi(c); err == nil {
			codes = append(codes, c)
		}
	}

	list := exec.CommandContext(t.Context(), "go", "list", "-f", `{{if and (ne .Name "main") .GoFiles}}{{.ImportPath}}{{end}}`, "./...")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	types := destinations.Registry("", nil, nil)
	var public []string
	for line := range strings.FieldsSeq(string(out)) {
		name := strings.TrimPrefix(strings.TrimPrefix(line, "github.com/notifyd/notifyd"), "/")
		kind := strings.TrimPrefix(name, "handlers/")
		switch {
		case types[kind] != nil: // the page names them in one row
		case name == "":
			public = append(public, "notifyd")
		case !strings.Contains("/"+name+"/", "/internal/") && !strings.HasPrefix(name, "integration") && !strings.HasPrefix(name, "examples"):
			public = append(public, name)
		}
	}
	compare("packages", packages, public)

	commands := make(map[string]bool)
	for _, c := range newRootCmd(&command.App{}).Commands() {
		if c.IsAvailableCommand() && c.Name() != "help" && c.Name() != "completion" {
			commands[c.Name()] = true
		}
	}
	named, _, _ := strings.Cut(sections["Commands"], ", and the fields")
	compare("commands", quoted(named), slices.Collect(maps.Keys(commands)))
	compare("exit codes", codes, []string{strconv.Itoa(command.ExitOK), strconv.Itoa(command.ExitFailure), strconv.Itoa(command.ExitUsage), strconv.Itoa(command.ExitChanges), strconv.Itoa(command.ExitConfig)})

	conn, err := pgx.Connect(t.Context(), database(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	texts := func(sql string) (all []string) {
		t.Helper()
		rows, err := conn.Query(t.Context(), sql)
		if err == nil {
			all, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	compare("tables", tables, texts(`SELECT table_name::text FROM information_schema.tables WHERE table_schema = 'public' AND table_type = 'BASE TABLE'`))
	columns := texts(`SELECT column_name::text FROM information_schema.columns WHERE table_name = 'outbox_events'`)
	for _, name := range quoted(regexp.MustCompile("(?m)^\\| `outbox_events` \\|(.*)$").FindStringSubmatch(sections["Tables"])[1]) {
		if !slices.Contains(columns, name) {
			t.Errorf("outbox_events has no column %s", name)
		}
	}
}
