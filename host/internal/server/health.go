package server

import (
	"encoding/json"
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// handlePublic adds what anybody may read.
func (s *Server) handlePublic(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/health", s.health)
	mux.Handle("GET /v1/metrics", promhttp.HandlerFor(s.cfg.Metrics, promhttp.HandlerOpts{
		ErrorLog: metricsLog{s}, ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: 4,
	}))
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

// metricsLog takes promhttp's errors.
type metricsLog struct{ *Server }

func (l metricsLog) Println(v ...any) { l.log.Warn("the metrics are not complete", "error", v) }
