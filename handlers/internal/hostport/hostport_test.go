package hostport_test

import (
	"strings"
	"testing"

	"github.com/notifyd/notifyd/handlers/internal/hostport"
)

func TestAddresses(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]struct {
		full   string // with the port 9092
		wrong  string // part of the error, "" for none
		remote bool
	}{
		"broker.example.com":   {full: "broker.example.com:9092", remote: true},
		"broker.example.com:7": {full: "broker.example.com:7", remote: true},
		"LocalHost":            {full: "LocalHost:9092"},
		"127.0.0.2:1":          {full: "127.0.0.2:1"},
		"::1":                  {full: "[::1]:9092"},
		"[::1]":                {full: "[::1]:9092"},
		"[2001:db8::1]:80":     {full: "[2001:db8::1]:80", remote: true},
		"tcp://broker":         {wrong: "leave out ://"},
		"a:1,b:2":              {wrong: "as a list"},
		"":                     {wrong: "such as one.example.com:1"},
		"user@host":            {wrong: "such as one.example.com:1"},
		"a b":                  {wrong: "such as one.example.com:1"},
		"host:0":               {wrong: "1 to 65535"},
		"host:65536":           {wrong: "1 to 65535"},
		"host:http":            {wrong: "1 to 65535"},
	} {
		err := hostport.Check(addr, "one.example.com:1")
		if (err == nil) != (want.wrong == "") || err != nil && !strings.Contains(err.Error(), want.wrong) {
			t.Errorf("%q: %v, want %q", addr, err, want.wrong)
		}
		if err != nil {
			continue
		}
		full := hostport.WithPort(addr, "9092")
		if full != want.full || hostport.IsRemote(full) != want.remote {
			t.Errorf("%q: %s, remote %t; want %+v", addr, full, hostport.IsRemote(full), want)
		}
	}
	if hostport.IsRemote("no port") {
		t.Error("an invalid address is remote")
	}
	for host, good := range map[string]bool{"": true, "smtp.example.com": true, "::1": true, "10.0.0.1": true, "host:25": false, "http://host": false, "a b": false} {
		if err := hostport.CheckHost(host); (err == nil) != good {
			t.Errorf("host %q: %v", host, err)
		}
	}
}
