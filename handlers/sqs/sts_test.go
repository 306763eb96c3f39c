package sqs

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// startFakeSTS starts a Security Token Service that knows the role "ok".
func startFakeSTS(t *testing.T) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/xml")
		refuse := func(code, text string) {
			w.WriteHeader(http.StatusForbidden)
			_, _ = fmt.Fprintf(w, `<ErrorResponse><Error><Type>Sender</Type><Code>%s</Code><Message>%s</Message></Error></ErrorResponse>`, code, text)
		}
		switch role := r.FormValue("RoleArn"); {
		case r.FormValue("RoleSessionName") != "notifyd":
			refuse("ValidationError", "no session")
		case strings.HasSuffix(role, "/ok"):
			_, _ = fmt.Fprint(w, `<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>AK</AccessKeyId>`+
				`<SecretAccessKey>sk</SecretAccessKey><SessionToken>st</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration>`+
				`</Credentials></AssumeRoleResult></AssumeRoleResponse>`)
		case r.FormValue("ExternalId") != "":
			refuse("ValidationError", "bad "+r.FormValue("ExternalId"))
		default:
			refuse("AccessDenied", "not you")
		}
	}))
	t.Cleanup(s.Close)
	return s
}
