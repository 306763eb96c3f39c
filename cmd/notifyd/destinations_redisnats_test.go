package main

import (
	"os"
	"strings"
	"testing"
)

// TestRedisAndNATSPages checks the configurations that their pages begin with,
// and settings that would not do.
func TestRedisAndNATSPages(t *testing.T) {
	t.Parallel()
	env := vars{"REDIS_PASSWORD": "swordfish", "NATS_PASSWORD": "swordfish"}
	for name, wrong := range map[string]map[string]string{
		"redis": {
			"read_timeout: 55s":   "timeout",
			"tls: {}":             "tls",
			"max_len: -1":         "max_len",
			"stream: '{{ nope }}": "stream",
		},
		"nats": {
			"ack_timeout: 55s": "timeout",
			"mode: kore":       "mode",
			"stream: a.b":      "stream",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			page, err := os.ReadFile("../../docs/destinations/" + name + ".md")
			if err != nil {
				t.Fatal(err)
			}
			_, example, _ := strings.Cut(string(page), "```yaml\n")
			example, _, _ = strings.Cut(example, "```")
			if !strings.Contains(example, "type: "+name) {
				t.Fatalf("the page begins with no configuration:\n%s", example)
			}
			if r := commandIn(t, env, "check-config", "-c", file(t, example)); r.code != 0 {
				t.Errorf("exit code %d:\n%s\n%s", r.code, r.stderr, example)
			}
			for line, key := range wrong {
				bad := strings.Replace(example, "type: "+name, "type: "+name+"\n    "+line, 1)
				r := commandIn(t, env, "check-config", "-c", file(t, bad))
				if r.code == 0 || !strings.Contains(r.stderr, key) || strings.Contains(r.stderr, "swordfish") {
					t.Errorf("%s: exit code %d:\n%s", line, r.code, r.stderr)
				}
			}
		})
	}
}
