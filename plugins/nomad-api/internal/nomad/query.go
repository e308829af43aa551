package nomad

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// How long a blocking query waits: Nomad's bounds. A sixteenth is added by chance, so that clients that have begun at
// the same time do not all come back at the same time.
const (
	defaultWait = 5 * time.Minute
	maxWait     = 10 * time.Minute
	jitterPart  = 16
)

const (
	// defaultNamespace is the namespace of a request that names none.
	defaultNamespace = "default"
	// allNamespaces lists those of all namespaces that the caller may see.
	allNamespaces = "*"
)

// query is what the queries of all calls have in common.
type query struct {
	namespace string
	prefix    string
	index     uint64 // 0: do not wait
	wait      time.Duration
	stale     bool
	perPage   int // 0: all
	nextToken string
}

// readQuery reads what a request asks for. It refuses one that is for another region.
func (s *server) readQuery(r *http.Request) (q query, err error) {
	values := r.URL.Query()
	if region := values.Get("region"); region != "" && region != s.config().Region {
		return q, &statusError{
			code: http.StatusInternalServerError,
			text: fmt.Sprintf("No path to region %q: this is region %q", region, s.config().Region),
		}
	}
	q = query{
		namespace: values.Get("namespace"), prefix: values.Get("prefix"), wait: defaultWait,
		stale: values.Has("stale"), nextToken: values.Get("next_token"),
	}
	if q.namespace == "" {
		q.namespace = defaultNamespace
	}
	if values.Get("filter") != "" {
		return q, badRequest("filter: Pannier has no filter expressions: leave it out")
	}
	if text := values.Get("index"); text != "" {
		if q.index, err = strconv.ParseUint(text, 10, 64); err != nil {
			return q, badRequest("Invalid index: %q", text)
		}
	}
	if text := values.Get("wait"); text != "" {
		if q.wait, err = time.ParseDuration(text); err != nil || q.wait < 0 {
			return q, badRequest("Invalid wait time: %q", text)
		}
		if q.wait == 0 {
			q.wait = defaultWait
		}
		q.wait = min(q.wait, maxWait)
	}
	if text := values.Get("per_page"); text != "" {
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil || n < 0 {
			return q, badRequest("Invalid per_page: %q", text)
		}
		q.perPage = int(n)
	}
	return q, nil
}

// page returns one page of a list that is in the order of its keys, and the token of the next one, which is the key of
// its first element.
func page[T any](q query, all []T, key func(T) string) (_ []T, next string) {
	for len(all) > 0 && key(all[0]) < q.nextToken {
		all = all[1:]
	}
	if q.perPage == 0 || len(all) <= q.perPage {
		return all, ""
	}
	return all[:q.perPage], key(all[q.perPage])
}

// blocking makes a query of the API, with what the caller wants of it. It waits as the caller does, but for no longer
// than this process serves: then the answer is what there is, and the client's next query goes to the next process.
func blocking[A interface{ GetMeta() *hostv1.ReadMeta }](ctx context.Context, s *server, q query,
	ask func(ctx context.Context, read *hostv1.ReadOptions) (A, error),
) (A, error) {
	now := func() (A, error) { return ask(ctx, &hostv1.ReadOptions{Stale: q.stale}) }
	if q.index == 0 {
		return now()
	}
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(s.serving, stop)() //nolint:contextcheck // Serve's, besides the request's
	until := time.Now().Add(q.wait + rand.N(q.wait/jitterPart+1))
	for {
		// The host waits for less than ten minutes at a time.
		left := min(time.Until(until), maxWait)
		if left <= 0 {
			return now()
		}
		res, err := ask(waiting, &hostv1.ReadOptions{Index: q.index, Wait: durationpb.New(left), Stale: q.stale})
		switch {
		case waiting.Err() != nil && ctx.Err() == nil:
			return now()
		case err != nil, res.GetMeta().GetIndex() != q.index:
			return res, err
		}
	}
}

// setMeta writes the headers that tell a client how old an answer is, and what to wait for.
func setMeta(w http.ResponseWriter, meta *hostv1.ReadMeta) {
	h := w.Header()
	h.Set("X-Nomad-Index", strconv.FormatUint(meta.GetIndex(), 10))
	h.Set("X-Nomad-KnownLeader", strconv.FormatBool(meta.GetKnownLeader()))
	h.Set("X-Nomad-LastContact", strconv.FormatInt(meta.GetAge().AsDuration().Milliseconds(), 10))
}

// secretsHeader has a driver's secrets for one call, as KEY=VALUE with commas between them.
const secretsHeader = "X-Nomad-CSI-Secrets"

func secretsOf(r *http.Request) (map[string]string, error) {
	text := r.Header.Get(secretsHeader)
	if text == "" {
		return nil, nil
	}
	secrets := map[string]string{}
	for n, pair := range strings.Split(text, ",") {
		key, value, found := strings.Cut(pair, "=")
		if !found || key == "" {
			return nil, badRequest("%s: pair %d is not KEY=VALUE", secretsHeader, n+1)
		}
		secrets[key] = value
	}
	return secrets, nil
}

// badRequest is an error of what the client has sent.
func badRequest(format string, args ...any) error {
	return &statusError{code: http.StatusBadRequest, text: fmt.Sprintf(format, args...)}
}

// notFound is the error of something that is not there.
func notFound(format string, args ...any) error {
	return &statusError{code: http.StatusNotFound, text: fmt.Sprintf(format, args...)}
}
