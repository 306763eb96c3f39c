package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/internal/cli"
)

// tree returns all commands.
func tree() (all []*cobra.Command) {
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		all = append(all, cmd)
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(newRootCmd(&command.App{LogLevel: cli.LogLevel(), LogFormat: cli.LogFormat()}))
	return all
}

// TestVocabulary: a flag has one meaning in the whole tree: the same kind of value and the same help. Other words for
// a meaning that has a name are refused.
func TestVocabulary(t *testing.T) {
	t.Parallel()
	synonyms := map[string][]string{
		"since":       {"newer-than", "from-time", "begin", "start", "younger-than"},
		"until":       {"older-than", "before", "to-time", "end"},
		"after":       {"upto", "up-to", "cursor", "next", "page", "offset"},
		"limit":       {"max", "count", "top", "rows", "number"},
		"scan":        {"search", "read"},
		"timeout":     {"within", "wait-for", "deadline", "max-wait", "patience"},
		"dry-run":     {"dryrun", "simulate", "preview", "plan"},
		"yes":         {"confirm", "assume-yes", "no-input"},
		"actor":       {"by", "user", "who"},
		"reason":      {"why", "comment", "message", "note"},
		"output":      {"format", "json"},
		"exit-code":   {"detailed-exitcode", "exitcode", "fail"},
		"destination": {"dest", "to-destination"},
		"type":        {"event-type"}, // --types of "capture add" are names, and no patterns
	}
	type flag struct{ kind, value, usage, at string }
	seen := make(map[string]flag)
	for _, cmd := range tree() {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			for name, others := range synonyms {
				if slices.Contains(others, f.Name) {
					t.Errorf("%s --%s: the tree says --%s for that", cmd.CommandPath(), f.Name, name)
				}
			}
			value, usage := pflag.UnquoteUsage(f)
			// A flag that may be repeated reads the same values.
			now := flag{strings.TrimSuffix(f.Value.Type(), "Array"), value, usage, cmd.CommandPath()}
			before, ok := seen[f.Name]
			if !ok {
				seen[f.Name] = now
				return
			}
			now.at = before.at
			if now != before {
				t.Errorf("--%s of %s is a %s, %q, and of %s a %s, %q", f.Name, before.at, before.kind, before.usage, cmd.CommandPath(), now.kind, now.usage)
			}
		})
	}
	for name := range synonyms {
		if _, ok := seen[name]; !ok {
			t.Errorf("no command has --%s: remove its synonyms", name)
		}
	}
}

// TestEveryOutputFlag: each command that prints facts prints them as JSON, too.
func TestEveryOutputFlag(t *testing.T) {
	t.Parallel()
	// These print a file, SQL, or nothing but their log.
	others := []string{
		"notifyd config init", "notifyd config print", "notifyd config reference", "notifyd config schema", "notifyd console", "notifyd healthcheck", "notifyd man", "notifyd migrate print",
		"notifyd run", "notifyd template test",
	}
	for _, cmd := range tree() {
		if cmd.RunE == nil {
			continue
		}
		if has, without := cmd.Flags().Lookup("output") != nil, slices.Contains(others, cmd.CommandPath()); has == without {
			t.Errorf("%s: --output is there: %v", cmd.CommandPath(), has)
		}
	}
}
