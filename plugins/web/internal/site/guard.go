package site

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/pannier/pannier/plugins/internal/frontdoor"
)

// policy allows a page its own style sheet, its own scripts and connections to where it came from, and nothing else:
// no inline script or style, no frame around it (https://www.w3.org/TR/CSP3/).
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// maxForm bounds the body of a POST in bytes.
const maxForm = 16 << 10

// guard refuses requests that other sites make a browser send, and sets the headers of all answers.
func (s *Site) guard(next http.Handler) http.Handler {
	// Sec-Fetch-Site and Origin; the token in each form is checked besides.
	sameOrigin := http.NewCrossOriginProtection()
	sameOrigin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "Another site has sent this form: nothing was done.", http.StatusForbidden)
	}))
	next = sameOrigin.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Cache-Control", "no-store")
		if s.TLS {
			h.Set("Strict-Transport-Security", "max-age=31536000")
		}
		if !frontdoor.KnownHost(r.Host, s.Hosts) {
			http.Error(w, fmt.Sprintf("This host is not called %q: use its address or localhost, or write the name into "+
				"hosts of the config block of plugin \"web\".", r.Host), http.StatusMisdirectedRequest)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		if !s.shared(r) && !r.URL.Query().Has(liveParam) && !strings.HasPrefix(r.URL.Path, "/static/") {
			s.Sessions.Renew(w, r, s.overTLS(r))
		}
		next.ServeHTTP(w, r)
	})
}

// shared reports whether the browser sends its cookies to all ports of this host: without TLS, and by an address or by
// localhost. There is no session then; the form to sign in leads to a name of this host's own.
func (s *Site) shared(r *http.Request) bool {
	return s.Port && !s.overTLS(r) && frontdoor.KnownHost(r.Host, nil)
}

// overTLS reports whether the browser uses TLS: with this process, or with a proxy in front of it. A client that lies
// about the latter changes its own cookie only.
func (s *Site) overTLS(r *http.Request) bool {
	return s.TLS || r.Header.Get("X-Forwarded-Proto") == "https"
}
