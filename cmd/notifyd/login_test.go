package main

import (
	"context"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

// TestRefusedLogin: a mail server that refuses the password sees one login of each connection, and no further one for
// half a minute or more. A reload with the right password is tried at once.
func TestRefusedLogin(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	url := database(t)
	sink := testenv.Mail(t, smtpsink.Options{TLS: smtpsink.NoTLS, Username: "shop", Password: "r1ght-w0rd"})
	text := strings.Replace(shopConfig(url, sink.Port()), "    tls: none\n", "    tls: none\n    username: shop\n    password: wr0ng-w0rd\n    connections: 2\n", 1) +
		"admin: {listen: \"127.0.0.1:0\"}\n"
	for range 20 {
		publishTo(t, url, "order.placed", order)
	}
	r := startReloadable(t, nil, text)
	r.stderr.await(t, `"destination down"`)
	r.stderr.await(t, "check password, then username")
	until(t, url, "SELECT count(*) > 0 FROM outbox_deliveries WHERE destination = 'mail' AND attempts = 0 AND last_error LIKE '%535%'")
	_, page := fetch(t, "http://"+listenOf(r.runningDaemon)+"/metrics")
	found := regexp.MustCompile(`notifyd_destination_next_probe_seconds{destination="mail"} (\S+)`).FindStringSubmatch(page)
	if found == nil {
		t.Fatal(page)
	}
	if next, err := strconv.ParseFloat(found[1], 64); err != nil || next < 2 { // any other fault has a pause of less at first
		t.Errorf("the next login comes in %v s", next)
	}
	if n := sink.Logins(); n > 2 {
		t.Errorf("%d logins", n)
	}
	r.write(t, strings.Replace(text, "wr0ng", "r1ght", 1))
	r.reloads <- struct{}{}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if all, err := sink.Wait(ctx, 20); err != nil {
		t.Errorf("%d mails after the reload: %v", len(all), err)
	}
}
