package apiserver

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// handlePublic adds what anybody may read.
func (s *Server) handlePublic(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/health", s.health)
	mux.Handle("GET /v1/metrics", promhttp.HandlerFor(s.cfg.Metrics, promhttp.HandlerOpts{
		ErrorLog: metricsLog{s}, ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: 4,
	}))
	mux.HandleFunc("GET /.well-known/jwks.json", s.jwks)
}

// health answers 200 while the agent is ready, else 503 with the reasons.
func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	answer := struct {
		Status  string   `json:"status"` // ok or unavailable
		Reasons []string `json:"reasons,omitempty"`
	}{Status: "ok", Reasons: s.cfg.Health()}
	code := http.StatusOK
	if len(answer.Reasons) > 0 {
		answer.Status, code = "unavailable", http.StatusServiceUnavailable
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(answer) // the caller is gone: nobody is left to tell
}

// jwksTimeout bounds reading the ledger for the key set.
const jwksTimeout = 10 * time.Second

// jwks answers with the public keys that check what the cluster signs. Those who check
// may keep them for a while: the key does not change.
func (s *Server) jwks(w http.ResponseWriter, r *http.Request) {
	if s.cfg.JWKS == nil {
		http.Error(w, "nothing is signed: no consul block of the agent's configuration has an auth_method", http.StatusNotFound)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), jwksTimeout)
	defer cancel()
	keys, err := s.cfg.JWKS(ctx)
	if err != nil {
		s.log.Warn("the public keys could not be read", "error", err)
		http.Error(w, "the keys cannot be read now: see the agent's log", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "public, max-age=300")
	_, _ = w.Write(keys) // the caller is gone: nobody is left to tell
}

// metricsLog takes promhttp's errors.
type metricsLog struct{ *Server }

func (l metricsLog) Println(v ...any) { l.log.Warn("the metrics are not complete", "error", v) }
