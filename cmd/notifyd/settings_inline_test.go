package main

import (
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	yaml "go.yaml.in/yaml/v4"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/cmd/internal/destinations"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// inlineSetting recognises a setting with its value in backticks.
var inlineSetting = regexp.MustCompile("`([a-z_]+): ([^`]+)`")

// beside are the settings that one in a sentence needs beside it, or takes the place of;
// those are nil.
func beside() map[string]map[string]any {
	channel := map[string]any{"stream": nil, "channel": "orders"}
	return map[string]map[string]any{
		"mode: core":                {"stream": nil},
		"auth: xoauth2":             {"username": "shop", "password": nil, "token_file": "token"},
		"dynamic_host: true":        {"url": "https://{{ .Payload.host }}/hook"},
		"tls: none":                 {"username": nil, "password": nil},
		"url: redis://localhost":    {"addresses": nil, "username": nil, "password": nil, "tls": nil},
		"require_subscribers: true": channel,
	}
}

// TestInlineSettings puts each setting that stands in a sentence or a table of a page
// into the configuration that the page of its destination begins with.
func TestInlineSettings(t *testing.T) {
	t.Parallel()
	known, examples := map[string][]string{}, map[string]string{}
	lane := settingNames(reflect.TypeFor[config.Lane]())
	for name, fresh := range destinations.Registry(".", nil, nil) {
		known[name] = append(settingNames(reflect.TypeOf(fresh()).Elem()), lane...)
		_, example, _ := strings.Cut(testenv.ReadFile(t, root+"docs/destinations/"+name+".md"), "```yaml\n")
		examples[name], _, _ = strings.Cut(example, "```")
	}
	ran := 0
	for _, page := range docPages(t) {
		section := ""
		for line := range strings.Lines(regexp.MustCompile("(?ms)^```.*?^```$").ReplaceAllString(testenv.ReadFile(t, page), "")) {
			if strings.HasPrefix(line, "#") {
				section = strings.TrimSpace(line)
			}
			for _, m := range inlineSetting.FindAllStringSubmatch(line, -1) {
				ran += trySetting(t, typesOf(page, section, m[1], known), examples, strings.ReplaceAll(strings.Trim(m[0], "`"), `\|`, "|"))
			}
		}
	}
	if ran < 40 {
		t.Errorf("%d settings", ran)
	}
}

// typesOf returns the types that a setting may be one of: that of the page or the section,
// where it is about one, else all that have it.
func typesOf(page, section, key string, known map[string][]string) (types []string) {
	name, isPage := strings.CutPrefix(page, root+"docs/destinations/")
	name = strings.TrimSuffix(name, ".md")
	if of, isSection := strings.CutPrefix(section, "### type: "); isSection {
		name, isPage = of, true
	}
	for of, keys := range known {
		if slices.Contains(keys, key) && (!isPage || of == name) {
			types = append(types, of)
		}
	}
	return types
}

// trySetting checks the example of each type with the setting in it: one has to take it.
// It returns how many settings that was.
func trySetting(t *testing.T, types []string, examples map[string]string, setting string) int {
	t.Helper()
	said := ""
	for _, name := range slices.Sorted(slices.Values(types)) {
		example := with(t, examples[name], setting)
		r := commandIn(t, variablesOf(example), "check-config", "-c", file(t, example))
		if r.code == 0 {
			return 1
		}
		said += r.stderr + example
	}
	if len(types) > 0 {
		t.Errorf("%s: %s", setting, said)
	}
	return 0
}

// with returns a configuration whose first destination has a setting.
func with(t *testing.T, example, setting string) string {
	t.Helper()
	var c, s map[string]any
	if err := yaml.Load([]byte(example), &c); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Load([]byte(setting), &s); err != nil {
		t.Errorf("%s: %v", setting, err)
	}
	all, _ := c["destinations"].(map[string]any)
	for _, d := range all {
		one, _ := d.(map[string]any)
		maps.Copy(one, s)
		maps.Copy(one, beside()[setting])
	}
	out, err := yaml.Dump(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
