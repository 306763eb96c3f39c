package config_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv/schematest"
)

func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := config.Schema(registry(), withTests(t))
	if err != nil {
		t.Fatal(err)
	}
	return schematest.Compile(t, text)
}

// TestSchemaAndParseAgree about the rules that a schema can express.
func TestSchemaAndParseAgree(t *testing.T) {
	t.Parallel()
	var starter bytes.Buffer
	if err := config.Init(&starter); err != nil {
		t.Fatal(err)
	}
	const mail = head + "routes: [{match: '*', to: a}]\ndestinations:\n  a:\n    type: email\n    host: h\n    to: x\n"
	cases := map[string]struct {
		in   string
		good bool
	}{
		"full":                    {full, true},
		"starter":                 {starter.String(), true},
		"nothing set":             {head, true},
		"nulls":                   {head + "relay:\ndatabase: {url: , schema: }\nlog: {level: , format: ~}\nroutes:\ndestinations:\n", true},
		"expansions":              {mail + "    port: ${env:N}\n    ratio: ${env:N}\n    dry: ${env:B}\n    wait: ${env:D}\n    tls: {mode: '${env:M}'}\n    concurrency: ${env:N}\n", true},
		"one for a list":          {mail, true},
		"list of strings":         {mail + "    extra: [1, {a: b}]\n    headers: {a: b, c: }\n", true},
		"duration 0":              {head + "retention: {keep: 0}\n", true},
		"duration '0'":            {head + "retention: {keep: '0'}\n", true},
		"durations":               {head + "retention: {keep: 1d12h}\nrelay: {lease: 1.5h, lock_budget: 1.5ms, poll_interval: 5000us}\n", true},
		"on dead":                 {mail + "    on_dead: block\n", true},
		"on dead, expanded":       {mail + "    on_dead: ${env:W}\n", true},
		"on dead, null":           {mail + "    on_dead:\n", true},
		"dead letters to":         {mail + "    on_dead: {to: b}\n  b: {type: log, on_dead: {to: c, then: block}}\n  c: {type: log}\n", true},
		"dead letters to, null":   {mail + "    on_dead: {to: b, then: }\n  b: {type: log}\n", true},
		"dead letters nowhere":    {mail + "    on_dead: {then: block}\n", false},
		"dead letters to null":    {mail + "    on_dead: {to: }\n", false},
		"dead letters in a list":  {mail + "    on_dead: [b]\n  b: {type: log}\n", false},
		"unknown on dead":         {mail + "    on_dead: b\n  b: {type: log}\n", false},
		"unknown key on dead":     {mail + "    on_dead: {to: b, than: block}\n  b: {type: log}\n", false},
		"unknown then":            {mail + "    on_dead: {to: b, then: blok}\n  b: {type: log}\n", false},
		"no version":              {"log: {level: info}\n", false},
		"version 2":               {"version: 2\n", false},
		"version text":            {"version: '1'\n", false},
		"null version":            {"version:\n", false},
		"unknown key":             {head + "rely: {}\n", false},
		"unknown nested key":      {head + "relay: {batches: 1}\n", false},
		"unknown handler key":     {mail + "    hots: x\n", false},
		"unknown deep key":        {mail + "    tls: {mod: tls}\n", false},
		"key of another type":     {head + "destinations: {a: {type: log, host: x}}\n", false},
		"unknown type":            {head + "destinations: {a: {type: slak}}\n", false},
		"no type":                 {head + "destinations: {a: {}}\n", false},
		"null destination":        {head + "destinations: {a: }\n", false},
		"bad name":                {head + "destinations: {a b: {type: log}}\n", false},
		"required":                {head + "destinations: {a: {type: email, to: x}}\n", false},
		"required but null":       {head + "destinations: {a: {type: email, to: x, host: }}\n", false},
		"required in a list":      {mail + "    tls: {limits: [{max: 1}]}\n", false},
		"text for a number":       {head + "relay: {batch: many}\n", false},
		"quoted number":           {head + "relay: {batch: '5'}\n", false},
		"fraction":                {head + "relay: {batch: 1.5}\n", false},
		"too small":               {head + "relay: {connections: 0}\n", false},
		"too large":               {mail + "    port: 65536\n", false},
		"number for text":         {head + "database: {schema: 5}\n", false},
		"boolean for text":        {head + "database: {schema: true}\n", false},
		"number for a secret":     {mail + "    password: 5\n", false},
		"text for a boolean":      {mail + "    dry: maybe\n", false},
		"enum":                    {head + "log: {level: inof}\n", false},
		"deep enum":               {mail + "    tls: {mode: sll}\n", false},
		"duration without a unit": {head + "relay: {lease: 30}\n", false},
		"duration with a space":   {head + "relay: {lease: 30 s}\n", false},
		"negative duration":       {head + "relay: {lease: -30s}\n", false},
		"list for a mapping":      {head + "relay: []\n", false},
		"mapping for a list":      {head + "routes: {}\n", false},
		"text for a list":         {head + "routes: a\n", false},
		"null in a list":          {head + "routes: [{match: a, to: [~]}]\n", false},
		"route without match":     {head + "routes: [{to: a}]\n", false},
		"route to nowhere":        {head + "routes: [{match: a, to: []}]\n", false},
	}
	s := schema(t)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, parseErr := parse(t, c.in, "N=5", "B=true", "D=5s", "M=tls", "W=block")
			schemaErr := s.Validate(schematest.Instance(t, []byte(c.in)))
			if c.good != (parseErr == nil) || c.good != (schemaErr == nil) {
				t.Errorf("good: %v\nParse:  %v\nschema: %v", c.good, parseErr, schemaErr)
			}
		})
	}
}

// TestSchemaIsReadable: the schema has descriptions and defaults for the editor.
func TestSchemaIsReadable(t *testing.T) {
	t.Parallel()
	data, err := config.Schema(registry(), withTests(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"description": "Most events taken by one claim, or by one read of a stream."`, `"default": "7d"`, `"default": 1000`, `"const": "email"`,
		`"default": "starttls"`, `"additionalProperties": false`,
	} {
		if !bytes.Contains(data, []byte(want)) {
			t.Errorf("%s is missing", want)
		}
	}
	if bytes.Count(data, []byte("$schema")) != 1 {
		t.Error("there must be one $schema")
	}
}

// TestSchemaHasLanesOnce: what every destination has stands once in the schema, with its description, and each type refers
// to it, or has a setting of that name of its own.
func TestSchemaHasLanesOnce(t *testing.T) {
	t.Parallel()
	types := registry()
	data, err := config.Schema(types, withTests(t))
	if err != nil {
		t.Fatal(err)
	}
	var root struct {
		Definitions map[string]struct{ Description string } `json:"$defs"`
		Properties  struct {
			Destinations struct {
				AdditionalProperties struct {
					OneOf []struct{ Properties map[string]any }
				}
			}
		}
	}
	if err := json.Unmarshal(data, &root); err != nil {
		t.Fatal(err)
	}

	lane := reflect.TypeFor[delivery.Lane]()
	if len(root.Definitions) < lane.NumField() {
		t.Errorf("%d definitions, and a lane has %d settings", len(root.Definitions), lane.NumField())
	}
	references := 0
	for name, definition := range root.Definitions {
		if definition.Description == "" {
			t.Errorf("%s has no description", name)
		}
		for _, branch := range root.Properties.Destinations.AdditionalProperties.OneOf {
			setting, _ := branch.Properties[name].(map[string]any)
			if len(setting) == 0 {
				t.Errorf("%s is missing in a type", name)
			}
			if ref, has := setting["$ref"]; has {
				references++
				if ref != "#/$defs/"+name {
					t.Errorf("%s refers to %s", name, ref)
				}
			}
		}
	}
	if least := (lane.NumField() - 3) * len(types); references < least {
		t.Errorf("%d references, want at least %d", references, least)
	}
}

type badSettings struct {
	C chan int `yaml:"c"`
}

func (badSettings) Validate() error { return nil }

type untaggedSettings struct{ Host string }

func (untaggedSettings) Validate() error { return nil }

// urgentSettings gives another meaning to the priority that every destination has.
type urgentSettings struct {
	Priority string `yaml:"priority"`
}

func (urgentSettings) Validate() error { return nil }

func TestSchemaRefusesSettingsItCannotDescribe(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]config.Settings{"bad": &badSettings{}, "untagged": &untaggedSettings{}, "urgent": &urgentSettings{}} {
		if out, err := config.Schema(config.Registry{name: func() config.Settings { return s }}, withTests(t)); err == nil {
			t.Errorf("%s: no error: %s", name, out)
		}
	}
}
