package site

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// keptEvents is how many events an agent keeps.
const keptEvents = 1000

// topics are the topics of events, as the API names them.
var topics = []string{"agent", "claim", "device", "driver", "plugin", "service", "snapshot", "volume", "workload"}

// sinces are the choices of how far back the page goes.
var sinces = []string{"5m", "1h", "24h"}

// event is one of a node.
type event struct {
	*hostv1.Event
	Node string
}

type eventsData struct {
	Events []event
	// Node alone is shown; empty: all nodes are.
	Node                string
	Topic, Since, Match string
	Topics, Sinces      []string
	Choices             []string
	More                int
}

// maxEvents is how many events the page has.
const maxEvents = 200

func (s *Site) events(ctx context.Context, u user, r *http.Request) (any, error) {
	q := r.URL.Query()
	d := eventsData{
		Node: nodeOf(r), Topic: q.Get("topic"), Since: q.Get("since"), Match: q.Get("match"), Topics: topics, Sinces: sinces,
	}
	if !slices.Contains(topics, d.Topic) {
		d.Topic = ""
	}
	var since time.Time
	if ago, err := time.ParseDuration(d.Since); err == nil && slices.Contains(sinces, d.Since) {
		since = time.Now().Add(-ago)
	} else {
		d.Since = ""
	}
	d.Choices, _ = s.host.choices(ctx)
	match := strings.ToLower(d.Match)
	var err error
	d.Events, err = s.history(ctx, u, r, d.Node, strings.Fields(d.Topic), func(e *hostv1.Event) bool {
		return !e.GetTime().AsTime().Before(since) &&
			strings.Contains(strings.ToLower(e.GetSubject()+" "+e.GetType()+" "+e.GetMessage()), match)
	})
	if err != nil {
		return nil, err
	}
	if len(d.Events) > maxEvents {
		d.More = len(d.Events) - maxEvents
		d.Events = d.Events[:maxEvents]
	}
	return d, nil
}

// history is the events of a node, or of all (empty), newest first. The first answer of a page about all has this
// node's only, and the stream adds the others'.
func (s *Site) history(ctx context.Context, u user, r *http.Request, node string, topics []string,
	about func(*hostv1.Event) bool,
) (found []event, err error) {
	all, of, err := s.host.recent(ctx, node, topics)
	if err != nil {
		return nil, err
	}
	if node == "" && r.URL.Query().Has(liveParam) {
		names, _ := s.host.choices(ctx, "failed", "leaving")
		names = slices.DeleteFunc(names, func(name string) bool { return name == of })
		others(ctx, names[:min(len(names), maxOthers)], func(ctx context.Context, node string) ([]event, error) {
			return s.others.of(u, node+" "+strings.Join(topics, " "), eventsKept, func() ([]event, error) {
				theirs, _, err := s.host.recent(ctx, node, topics)
				return theirs, err
			})
		}, func(_ string, theirs []event, _ string) { all = append(all, theirs...) })
	}
	for _, e := range all {
		if about(e.Event) {
			found = append(found, e)
		}
	}
	slices.SortStableFunc(found, func(a, b event) int {
		return cmp.Or(b.GetTime().AsTime().Compare(a.GetTime().AsTime()), cmp.Compare(b.GetSeq(), a.GetSeq()))
	})
	return found, nil
}

// recent reads the events that a node keeps; empty: the one that is called.
func (h host) recent(ctx context.Context, node string, topics []string) (all []event, of string, err error) {
	stream, err := h.Agent.Events(ctx, &hostv1.EventsRequest{Recent: keptEvents, Topics: topics, Node: node})
	if err != nil {
		return nil, "", err
	}
	defer stream.Close()
	for stream.Receive() {
		all = append(all, event{stream.Msg().GetEvent(), stream.ResponseHeader().Get(api.NodeHeader)})
	}
	return all, stream.ResponseHeader().Get(api.NodeHeader), stream.Err()
}

// eventsOf returns the cluster's newest events about an object, or why there are none.
func (s *Site) eventsOf(ctx context.Context, u user, r *http.Request, topics []string, about func(*hostv1.Event) bool,
) (found []event, why string) {
	all, err := s.history(ctx, u, r, "", topics, about)
	return all[:min(len(all), ownEvents)], reason(err)
}
