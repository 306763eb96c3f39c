package config_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/config"
)

// head is a valid file to which the cases append.
const head = "version: 1\n"

func TestYAMLOddities(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", 20000)
	cases := map[string]struct{ in, want string }{
		"empty":              {"", `1:1: the file is empty: "notifyd config init" writes one to start from`},
		"only comments":      {"# nothing\n", `1:1: the file is empty`},
		"only a marker":      {"---\n", `the file: expected a mapping of keys and values, got nothing`},
		"text":               {"hello\n", "1:1: the file: expected a mapping of keys and values, got text"},
		"list":               {"- a\n", "1:1: the file: expected a mapping of keys and values, got a list"},
		"two documents":      {head + "---\nversion: 1\n", "2:1: a second document starts here"},
		"broken second":      {head + "---\n[\n", "not valid YAML"},
		"tab":                {head + "log:\n\tlevel: info\n", "3:1: not valid YAML: found character that cannot start any token while scanning for the next token (indent with spaces, not with tabs)"},
		"not UTF-8":          {head + "log: {level: \xff}\n", "2:14: not valid YAML: invalid leading UTF-8 octet"},
		"unclosed":           {head + "log: {level: info\n", "not valid YAML"},
		"flow expansion":     {head + "log: {level: ${env:X}}\n", "inside { } and [ ], put ${...} in quotes"},
		"depth":              {deep, "not valid YAML: exceeded max depth"},
		"huge int":           {head + "relay: {batch: 99999999999999999999999}\n", "relay.batch: the number is too large"},
		"int64 overflow":     {head + "relay: {batch: 9223372036854775808}\n", "relay.batch: the number is too large"},
		"float for int":      {head + "relay: {batch: 1e3}\n", `relay.batch: expected a whole number, got "1e3"`},
		"octal":              {head + "relay: {batch: 010}\n", `starts with a zero`},
		"infinity":           {head + "destinations: {a: {type: log, backoff: {multiplier: .inf}}}\n", "expected a number"},
		"list for a mapping": {head + "relay: [1]\n", "2:8: relay: expected a mapping of keys and values, got a list"},
		"mapping for a list": {head + "routes: {a: b}\n", "2:9: routes: expected a list, got a mapping"},
		"mapping for text":   {head + "log: {level: {a: b}}\n", "log.level: expected text, got a mapping"},
		"number for text":    {head + "database: {schema: 12}\n", "2:20: database.schema: expected text, got a number: put it in quotes"},
		"two identities":     {head + "database: {password_command: [cat, a], aws_region: eu-central-1}\n", "database.aws_region: excludes password_command: remove one of them"},
		"no program":         {head + "database: {password_command: ['']}\n", "database.password_command: begins with an empty word: name a program, then its arguments"},
		"negative lifetime":  {head + "database: {password_lifetime: -1s}\n", "database.password_lifetime: "},
		"null destination":   {head + "destinations:\n  a:\n", `3:3: the key "type" is missing in destinations.a (known: email, log)`},
		"null in a list":     {head + "routes: [{match: a, to: [~]}]\n", "routes.0.to.0: an element of the list is empty"},
		"null key":           {head + "~: 1\n", `unknown key "~"`},
		"list as key":        {head + "? [a]\n: 1\n", "2:3: a key must be a name, not a list or a mapping"},
		"tag":                {head + "log: {level: !vault secret}\n", "YAML tags with an exclamation mark are not supported in log.level"},
		"binary":             {head + "log: {level: !!binary aGk=}\n", "YAML tags with an exclamation mark are not supported in log.level"},
		"bare star":          {head + "routes:\n  - match: *\n    to: a\n", `text that starts with * must be in quotes, such as "*"`},
		"star in a flow":     {head + "routes: [{match: *, to: a}]\n", `text that starts with * must be in quotes, such as "*"`},
		"star and a word":    {head + "routes:\n  - match: *.created\n", `text that starts with * must be in quotes, such as "*"`},
		"template":           {head + "database:\n  url: {{ .Payload.x }}\n", `3:8: database.url: a template must be in quotes: "{{ ... }}"`},
		"template in a list": {head + "alerts: {to: [{{ .Payload.x }}]}\n", `alerts.to: a template must be in quotes`},
		"template and text":  {head + "database:\n  url: {{ .Payload.x }} y\n  schema: x\n", `a template must be in quotes: "{{ ... }}"`},
		"colon in a value":   {head + "database:\n  schema: a: b\n", "3:12: not valid YAML: mapping values are not allowed in this context (text with a colon and a space in it must be in quotes)"},
		"indented further":   {head + "log:\n  level: info\n   format: json\n", "(is the line before it indented otherwise, or a quote missing?)"},
		"shell variable":     {head + "database: {url: $HUNTER2}\n", "2:17: database.url: a variable is written ${env:NAME}, $NAME is not expanded: write $$ for a dollar sign"},
		"variable in a URL":  {head + "database: {url: 'postgres://u:$HUNTER2@h/d'}\n", "database.url: a variable is written ${env:NAME}"},
		"variable, number":   {head + "relay: {batch: $BATCH}\n", "relay.batch: a variable is written ${env:NAME}"},
		"unknown alias":      {head + "database: {url: *hunter2}\n", "text that starts with * must be in quotes"},
		"cyclic alias":       {head + "relay: &r {batch: *r}\n", "the anchor contains itself in relay.batch"},
		"cyclic merge":       {head + "relay: &r {<<: *r}\n", "the anchor contains itself in relay"},
		"merge of text":      {head + "relay: {<<: x}\n", "<< merges a mapping in relay, not text"},
		"no version":         {"log: {level: info}\n", `1:1: the key "version" is missing`},
		"text version":       {"version: '1'\n", `version: expected a whole number, got "1"`},
		"expanded version":   {"version: ${env:V}\n", "version: write the version out"},
		"expanded type":      {head + "destinations: {a: {type: '${env:T}'}}\n", "destinations.a.type: write the type out"},
		"negative duration":  {head + "relay: {lease: -5s}\n", `relay.lease: "-5s": not a duration`},
		"zero timeout":       {head + "destinations: {a: {type: log, timeout: 0}}\n", `destinations.a.timeout: "0" is too small: the least is 1ms`},
		"long duration":      {head + "retention: {keep: 9999999d}\n", "duration is too long"},
		"max below initial":  {head + "destinations: {a: {type: log, backoff: {initial: 2h, max: 1h}}}\n", "destinations.a.backoff.max: 1h0m0s is shorter than backoff.initial (2h0m0s)"},
		"missing space":      {head + "database: {url:hunter2}\n", `unknown key "url:" (is a space missing after the colon?) in database`},
		"control in match":   {head + "routes: [{match: \"a\\tb\", to: x}]\n", "contains a space"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := parse(t, c.in, "X=1", "V=1", "T=log")
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the secret is in the message: %v", err)
			}
		})
	}
}

func TestYAMLConveniences(t *testing.T) {
	t.Parallel()
	cases := map[string]string{
		"byte order mark": "\ufeff" + head,
		"CRLF":            "version: 1\r\nlog:\r\n  level: info\r\n",
		"document marker": "---\nversion: 1\n...\n",
		"nulls":           head + "database: {url: , schema: ~}\nrelay:\ndestinations:\nroutes: null\nlog: {level: }\n",
		"alias":           head + "destinations:\n  a: &a {type: log, concurrency: 2}\n  b: *a\nroutes: [{match: '*', to: [a, b]}]\n",
		"merge":           head + "destinations:\n  a: &a {type: log, concurrency: 2}\n  b: {<<: *a, timeout: 2s}\nroutes: [{match: '*', to: [a, b]}]\n",
		"merge list":      head + "destinations:\n  a: &a {type: log}\n  b: {<<: [*a, {concurrency: 2}]}\nroutes: [{match: '*', to: [a, b]}]\n",
		"quoted":          head + "\"log\": {'level': \"info\"}\n",
	}
	for name, in := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := mustParse(t, in)
			if c.Database.Schema != "public" || c.Log.Level != "info" || c.Relay.Batch != 1000 {
				t.Errorf("%+v", c)
			}
			if len(c.Destinations) == 2 && name != "merge list" && c.Destinations[0].Concurrency != 2 {
				t.Errorf("%+v", c.Destinations)
			}
		})
	}
}

func TestMergedKeysGiveWay(t *testing.T) {
	t.Parallel()
	c := mustParse(t, head+`destinations:
  a: &a {type: log, concurrency: 2, timeout: 9s}
  b: {concurrency: 3, <<: *a}
routes: [{match: "*", to: [a, b]}]
`)
	b := c.Destinations[1]
	if b.Concurrency != 3 || b.Timeout.String() != "9s" {
		t.Errorf("b = %+v", b.Lane)
	}
}

// TestManyAliases guards against a file whose aliases multiply.
func TestManyAliases(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString(head + "destinations:\n  a:\n    type: email\n    host: h\n    to: x\n    extra:\n      l0: &l0 [1,1]\n")
	for i := 1; i < 40; i++ {
		fmt.Fprintf(&b, "      l%d: &l%d [*l%d,*l%d]\n", i, i, i-1, i-1)
	}
	_, err := parse(t, b.String())
	if err == nil || !strings.Contains(err.Error(), "aliases") {
		t.Errorf("err = %v", err)
	}
}

func TestSecretsStayOutOfMessages(t *testing.T) {
	t.Parallel()
	const hidden = "Sup3rHidden"
	cases := []string{
		"database: {url: 'mysql://u:Sup3rHidden@h/db'}",
		"database: {url: 'postgres://u:Sup3rHidden%zz@h/db'}",
		"database: {url: [Sup3rHidden]}",
		"database: {url: *Sup3rHidden}",
		"database: {url: \"Sup3rHidden\\q\"}",
		"database: {url: !Sup3rHidden x}",
		"database: {url: 'Sup3rHidden${Sup3rHidden'}",
		"database: {url: '${Sup3rHidden}'}",
		"database: {url: '${env:Sup3rHidden!}'}",
		"database: Sup3rHidden",
		"relay: {batch: '${env:S}'}",
		"relay: {lease: '${env:S}'}",
		"log: {level: '${env:S}'}",
		"destinations: {a: {type: '${env:S}'}}",
		"destinations: {a: {type: email, host: h, to: x, from: '${env:S}'}}",
		"destinations: {a: {type: email, host: h, to: x, from: 'x ${env:S} y'}}",
		"destinations: {a: {type: email, host: h, to: x, password: Sup3rHidden, tls: {mode: none}}}",
		"destinations: {a: {type: email, host: h, to: x, password: [Sup3rHidden]}}",
		"destinations: {a: {type: email, host: h, to: x, password:Sup3rHidden}}",
		"destinations: {a: {type: email, host: h, to: x, port: '${env:S}', dry: '${env:S}', ratio: '${env:S}', small: '${env:S}'}}",
		"destinations: {a: {type: email, host: h, to: x, level: '${env:S}'}}",
		"destinations: {a: {type: email, host: h, to: x, tls: {mode: '${env:S}'}}}",
		"routes: [{match: '${env:S} x', to: '${env:S}'}]",
		"routes: [{match: '${env:S}', to: '${env:S}'}, {match: '${env:S}', to: '${env:S}'}]",
	}
	for _, in := range cases {
		t.Run(in, func(t *testing.T) {
			t.Parallel()
			_, err := parse(t, head+in+"\n", "S="+hidden)
			if err == nil {
				t.Fatal("no error")
			}
			if strings.Contains(err.Error(), hidden) {
				t.Errorf("the secret is in the message: %v", err)
			}
		})
	}
}

func TestBadDatabaseURLInTheEnvironment(t *testing.T) {
	t.Parallel()
	_, err := parse(t, head, "DATABASE_URL=Sup3rHidden")
	if err == nil || strings.Contains(err.Error(), "Sup3rHidden") || !strings.Contains(err.Error(), "DATABASE_URL") {
		t.Errorf("err = %v", err)
	}
}

func TestSecretsStayOutOfFormattedConfigs(t *testing.T) {
	t.Parallel()
	c := mustParse(t, full)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		for _, v := range []any{c, *c, c.Destinations[0], c.Destinations[0].Settings} {
			out := fmt.Sprintf(verb, v)
			for _, s := range []string{"s3cret", "hunter2", "t0ken"} {
				if strings.Contains(out, s) {
					t.Errorf("%s shows %s: %s", verb, s, out)
				}
			}
		}
	}
}

func TestFindAndLoad(t *testing.T) {
	t.Parallel()
	path := write(t, "other.yaml", head)
	if got, err := config.Find("flag.yaml", env("NOTIFYD_CONFIG=x")); got != "flag.yaml" || err != nil {
		t.Errorf("flag: %q, %v", got, err)
	}
	if got, err := config.Find("", env("NOTIFYD_CONFIG="+path)); got != path || err != nil {
		t.Errorf("env: %q, %v", got, err)
	}
	home := t.TempDir()
	if err := os.MkdirAll(home+"/notifyd", 0o700); err != nil {
		t.Fatal(err)
	}
	xdg := home + "/notifyd/config.yaml"
	if err := os.WriteFile(xdg, []byte(head), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := config.Find("", env("XDG_CONFIG_HOME="+home)); got != xdg || err != nil {
		t.Errorf("xdg: %q, %v", got, err)
	}
	_, err := config.Find("", env("HOME=/nowhere"))
	const want = "notifyd.yaml: no configuration file: tried --config, $NOTIFYD_CONFIG, notifyd.yaml, /nowhere/.config/notifyd/config.yaml, /etc/notifyd/config.yaml"
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("err = %v", err)
	}
	if _, err := config.Load(path, "", registry(), env()); err != nil {
		t.Error(err)
	}
	_, err = config.Load(path+".not", "", registry(), env())
	var list *config.Error
	if !errors.As(err, &list) || err.Error() != path+".not: cannot be read: no such file or directory" {
		t.Errorf("err = %v", err)
	}
}
