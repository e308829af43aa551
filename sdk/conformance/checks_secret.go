package conformance

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
)

var secretChecks = []*Check{
	{
		ID:    "secret.echo",
		Says:  "If a backend's error quotes the request, the secrets in it reach neither the log nor the caller.",
		Fix:   "Redact the secrets that were sent from the answer before it becomes an error or a log line.",
		after: configured,
		run:   up(checkEcho),
	},
	{
		ID:    "secret.log",
		Says:  "Its log contains no secret that it was given, even at the level trace.",
		Fix:   "Log names, never requests. Volume secrets, mount flags, tokens, JWTs and headers are secrets, and so are the contents of files that the configuration names.",
		after: configured,
		last:  true,
		run: func(_ context.Context, r *run, _ *checking) error {
			for _, p := range r.processes {
				text, err := os.ReadFile(p.log)
				if err != nil {
					continue // it was never started
				}
				if found := leak(string(text), r.secrets()); found != "" {
					return fmt.Errorf("its log says: %s", found)
				}
			}
			return nil
		},
	},
	{
		ID:    "secret.error",
		Says:  "Neither an error of a call nor its health contains a secret that it was given.",
		Fix:   "Name the operation and its object in an error, but not its parameters. A library's error may quote the request.",
		after: configured,
		last:  true,
		run: func(_ context.Context, r *run, _ *checking) error {
			for _, w := range r.heard.all() {
				if found := leak(w.text, r.secrets()); found != "" && !w.isProcess() {
					return fmt.Errorf("%s answers: %s", w.where, found)
				}
			}
			return nil
		},
	},
	{
		ID:    "secret.process",
		Says:  "Neither the arguments nor the environment of its process and its children contain a secret that it was given.",
		Fix:   "Pass secrets to programs through a pipe, or a file that only their user may read.",
		after: configured,
		last:  true,
		run: func(_ context.Context, r *run, _ *checking) error {
			for _, w := range r.heard.all() {
				if found := leak(w.text, r.secrets()); found != "" && w.isProcess() {
					return fmt.Errorf("others can read from a process: %s", found)
				}
			}
			return nil
		},
	},
}

// keep adds a secret that a backend has issued.
func (r *run) keep(secret string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.given = append(r.given, secret)
}

// secrets returns all texts that must not be found.
func (r *run) secrets() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := append([]string{r.secret}, r.given...)
	out = append(out, r.cfg.Secrets...)
	if text, err := os.ReadFile(r.cfg.Consul.TokenFile); err == nil {
		out = append(out, strings.TrimSpace(string(text)))
	}
	return slices.DeleteFunc(out, func(s string) bool { return s == "" })
}

// leak returns the line of a text that contains a secret, with the secrets removed.
func leak(text string, secrets []string) string {
	for line := range strings.Lines(text) {
		clean := strings.TrimSpace(line)
		for _, s := range secrets {
			clean = strings.ReplaceAll(clean, s, hidden)
		}
		if at := strings.Index(clean, hidden); at >= 0 {
			return fmt.Sprintf("%q", clean[max(0, at-200):min(len(clean), at+100)])
		}
	}
	return ""
}

const hidden = "[the secret]"

// digest stands for a secret in an answer.
func digest(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:8]
}

func checkEcho(ctx context.Context, r *run, c *checking, p *process) error {
	// The check has its own marker, so that the other checks do not report the same leak.
	secret := "3ch0-" + rand.Text()
	at, _, err := r.echo(c, secret)
	if err != nil {
		return err
	}
	for name, err := range r.kind.outcomes(ctx, p.conn, at, c.name()) {
		if err == nil {
			continue
		}
		if found := leak(err.Error(), []string{secret}); found != "" {
			return fmt.Errorf("%s answers: %s", name, found)
		}
	}
	text, err := os.ReadFile(p.log)
	if err != nil {
		return fmt.Errorf("read its log: %w", err)
	}
	if found := leak(string(text), []string{secret}); found != "" {
		return fmt.Errorf("its log says: %s", found)
	}
	return nil
}

// heard collects everything that the plugin has made visible: the errors of its calls, its health, and what can be
// read from its processes.
type heard struct {
	mu    sync.Mutex
	words []words
}

type words struct{ where, text string }

func (h *heard) note(where, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.words = append(h.words, words{where, text})
}

func (h *heard) all() []words {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]words(nil), h.words...)
}

// isProcess distinguishes what was read from a process from the answer of a call.
func (w words) isProcess() bool { return len(w.where) > 0 && w.where[0] != '/' }

func (h *heard) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	err := invoke(ctx, method, req, reply, cc, opts...)
	if err != nil {
		h.note(method, err.Error())
	}
	return err
}

func (h *heard) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
	open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		h.note(method, err.Error())
		return nil, err
	}
	return &heardStream{ClientStream: s, heard: h, method: method}, nil
}

type heardStream struct {
	grpc.ClientStream
	heard  *heard
	method string
}

func (s *heardStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil && !errors.Is(err, io.EOF) {
		s.heard.note(s.method, err.Error())
	}
	if health, ok := m.(*pluginv1.AttendResponse); ok && err == nil {
		s.heard.note(s.method, health.GetMessage())
	}
	return err
}
