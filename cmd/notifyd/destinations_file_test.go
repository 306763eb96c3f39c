package main

import (
	"strings"
	"testing"
)

func TestFileMistakes(t *testing.T) {
	t.Parallel()
	path := file(t, "version: 1\ndestinations:\n  archive:\n    type: file\n    path: a.jsonl\n    timeout: 20s\nroutes: [{match: '*', to: archive}]\n")
	got := invoke(t, "check-config", "-c", path)
	const want = ":6:14: destinations.archive.timeout: must be longer than the wait for locks (20s)"
	if got.code != 78 || !strings.HasPrefix(got.stderr, path+want) {
		t.Errorf("got  %+v\nwant %s", got, want)
	}
}
