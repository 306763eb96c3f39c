package main

import (
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/cmd/internal/destinations"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// typeCase is what tests know of a type of destination: the content of testdata/destinations/TYPE.yaml.
type typeCase struct {
	// Least are the settings that a destination of the type must have, as in a flow mapping.
	Least string `yaml:"least"`
	// Headers says where a message shows the headers of an event: "among" those of notifyd, "apart" from them, or "none".
	Headers string `yaml:"headers"`
	// Server is the host, and the port or 0, that spans have with the settings Least; "" if they have none.
	Server string `yaml:"server"`
	// Forged are headers that an event must not set, beside those of all types.
	Forged []string `yaml:"forged"`
	// Every are destinations that together have each setting, with a value that is not the default.
	Every map[string]map[string]any `yaml:"every"`
	// Templates has a row for each setting that is a template.
	Templates []templateValue `yaml:"templates"`
	// Mistakes are settings in block style that check-config refuses.
	Mistakes []typeMistake `yaml:"mistakes"`
}

// typeMistake has a part of the error. It begins with the place if it begins with a colon.
type typeMistake struct {
	Settings string `yaml:"settings"`
	Want     string `yaml:"want"`
}

// typeCases reads the case of each type. It fails the test if one is missing, or has no type.
func typeCases(t *testing.T) map[string]typeCase {
	t.Helper()
	all := make(map[string]typeCase)
	for kind := range destinations.Registry("", nil, nil) {
		var c typeCase
		text := testenv.ReadFile(t, "testdata/destinations/"+kind+".yaml")
		if err := yaml.Load([]byte(text), &c, yaml.WithKnownFields()); err != nil {
			t.Fatalf("testdata/destinations/%s.yaml: %v", kind, err)
		}
		all[kind] = c
	}

	files, err := filepath.Glob("testdata/destinations/*")
	if err != nil || len(files) != len(all) {
		t.Fatalf("%d files for %d types, %v", len(files), len(all), err)
	}
	return all
}

// smallest has the settings that a destination of each type must have.
func smallest(t *testing.T) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for kind, c := range typeCases(t) {
		all[kind] = c.Least
	}
	return all
}

// smallestVars are the variables of smallest.
func smallestVars() vars {
	return vars{"SLACK_TOKEN": "xoxb-x", "INBOX_URL": "postgres://shop@127.0.0.1:1/stock"}
}

// ofEveryType is a configuration with a destination of each type, which has its name. more returns further settings of a type.
func ofEveryType(t *testing.T, more func(kind string) string) string {
	t.Helper()
	var text strings.Builder
	text.WriteString("version: 1\ndestinations:\n")
	all := smallest(t)
	kinds := slices.Sorted(maps.Keys(all))
	for _, kind := range kinds {
		settings := slices.DeleteFunc([]string{"type: " + kind, all[kind], more(kind)}, func(s string) bool { return s == "" })
		fmt.Fprintf(&text, "  %s: {%s}\n", kind, strings.Join(settings, ", "))
	}
	fmt.Fprintf(&text, "routes: [{match: '*', to: [%s]}]\n", strings.Join(kinds, ", "))
	return text.String()
}

// typesWith returns the types that have all of the settings, sorted.
func typesWith(settings ...string) (kinds []string) {
	for kind, fresh := range destinations.Registry("", nil, nil) {
		names := settingNames(reflect.TypeOf(fresh()).Elem())
		if !slices.ContainsFunc(settings, func(s string) bool { return !slices.Contains(names, s) }) {
			kinds = append(kinds, kind)
		}
	}
	slices.Sort(kinds)
	return kinds
}

// TestTypeMistakes: check-config refuses the mistakes of each type, at their place, and shows no secret.
func TestTypeMistakes(t *testing.T) {
	t.Parallel()
	for kind, c := range typeCases(t) {
		for _, m := range c.Mistakes {
			settings := strings.ReplaceAll("\n"+m.Settings, "\n", "\n    ")
			path := file(t, "version: 1\ndestinations:\n  d:\n    type: "+kind+settings+"\nroutes: [{match: '*', to: d}]\n")
			got := invoke(t, "check-config", "-c", path)

			isRefused := got.code == command.ExitConfig && strings.Contains(got.stderr, m.Want)
			if strings.HasPrefix(m.Want, ":") {
				isRefused = isRefused && strings.HasPrefix(got.stderr, path+m.Want)
			}
			isShown := strings.Contains(got.stderr, "hush") || strings.Contains(got.stderr, "sesame")
			if !isRefused || isShown {
				t.Errorf("%s%s\n%+v\nwant %s", kind, settings, got, m.Want)
			}
		}
	}
}

// TestServerOfTypes: spans name the server of a destination, where it is one.
func TestServerOfTypes(t *testing.T) {
	t.Parallel()
	env := smallestVars()
	text := ofEveryType(t, func(string) string { return "" })
	c, err := config.Parse("notifyd.yaml", []byte(text), destinations.Registry(".", nil, nil), env.lookup)
	if err != nil {
		t.Fatal(err)
	}

	cases := typeCases(t)
	for _, d := range c.Destinations {
		got := ""
		if host, port := destinations.Server(d.Settings); host != "" {
			got = net.JoinHostPort(host, strconv.Itoa(port))
		}
		if want := cases[d.Type].Server; got != want {
			t.Errorf("%s: %q, want %q", d.Type, got, want)
		}
	}
}
