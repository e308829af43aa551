package site

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
)

// The files of others are as npm has them, in htmx.org 4.0.1: dist/htmx.min.js, dist/ext/hx-sse.min.js and LICENSE.
func TestVendoredFiles(t *testing.T) {
	for name, want := range map[string]string{
		"htmx.min.js":   "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130",
		"hx-sse.min.js": "18ef2761356ec1fe0bb6d92612315b37517a7c1e9856b661c5ae81fef239d103",
		"htmx-LICENSE":  "d3d2456f76414f2456104660ebd65aff1c04cd7966b942bdabd63f3cdb316a38",
	} {
		text, err := files.ReadFile("static/" + name)
		check.NoError(t, err)
		if got := sha256.Sum256(text); hex.EncodeToString(got[:]) != want {
			t.Errorf("%s has the SHA-256 %x, want %s", name, got, want)
		}
	}
}

// A static file is served under the address that has its checksum, and under no other.
func TestStatic(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /static/{sum}/{name}", static)
	for path, want := range map[string]int{
		asset("web.css"): http.StatusOK, asset("htmx-LICENSE"): http.StatusNotFound, "/static/000000000000/web.css": http.StatusNotFound,
		"/static/" + sums["web.css"] + "/..%2ftemplates%2flayout.html": http.StatusNotFound,
	} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != want {
			t.Errorf("%s: %d, want %d", path, w.Code, want)
		}
	}
}
