package site

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// keptEvents is how many events an agent keeps.
const keptEvents = 1000

// topics are those of events, as the API names them.
var topics = []string{"agent", "claim", "device", "driver", "plugin", "service", "snapshot", "volume", "workload"}

// sinces are the choices of how far back the page goes.
var sinces = []string{"5m", "1h", "24h"}

// event is one of a node; of the one whose page it is without its name.
type event struct {
	*hostv1.Event
	Node string
}

type eventsData struct {
	Events []event
	// Node was asked; empty: the one whose page it is, which is Here.
	Node, Here          string
	Topic, Since, Match string
	Topics, Sinces      []string
	Choices             []string
	More                int
}

// maxEvents is how many events the page has.
const maxEvents = 200

func (s *Site) events(ctx context.Context, _ user, r *http.Request) (any, error) {
	q := r.URL.Query()
	d := eventsData{
		Node: nodeOf(r), Topic: q.Get("topic"), Since: q.Get("since"), Match: q.Get("match"), Topics: topics, Sinces: sinces,
	}
	req := &hostv1.EventsRequest{Recent: keptEvents, Node: d.Node}
	if slices.Contains(topics, d.Topic) {
		req.Topics = []string{d.Topic}
	} else {
		d.Topic = ""
	}
	if ago, err := time.ParseDuration(d.Since); err == nil && slices.Contains(sinces, d.Since) {
		req.Since = timestamppb.New(time.Now().Add(-ago))
	} else {
		d.Since = ""
	}
	all, here, err := s.host.recent(ctx, req)
	if err != nil {
		return nil, err
	}
	d.Here = here
	d.Choices, _ = s.host.choices(ctx)
	match := strings.ToLower(d.Match)
	for _, e := range all {
		if strings.Contains(strings.ToLower(e.GetSubject()+" "+e.GetType()+" "+e.GetMessage()), match) {
			d.Events = append(d.Events, e)
		}
	}
	if len(d.Events) > maxEvents {
		d.More = len(d.Events) - maxEvents
		d.Events = d.Events[:maxEvents]
	}
	return d, nil
}

// recent reads events, newest first, and which node they are of.
func (h host) recent(ctx context.Context, req *hostv1.EventsRequest) (all []event, of string, err error) {
	stream, err := h.Agent.Events(ctx, req)
	if err != nil {
		return nil, "", err
	}
	defer stream.Close()
	for stream.Receive() {
		all = append(all, event{stream.Msg().GetEvent(), req.GetNode()})
	}
	slices.SortStableFunc(all, func(a, b event) int { return cmp.Compare(b.GetSeq(), a.GetSeq()) })
	return all, stream.ResponseHeader().Get(api.NodeHeader), stream.Err()
}

// eventsOf returns the newest events of a node about an object, or why there are none.
func (h host) eventsOf(ctx context.Context, node string, topics []string, about func(*hostv1.Event) bool,
) (found []event, why string) {
	all, _, err := h.recent(ctx, &hostv1.EventsRequest{Recent: keptEvents, Topics: topics, Node: node})
	if err != nil {
		return nil, reason(err)
	}
	all = slices.DeleteFunc(all, func(e event) bool { return !about(e.Event) })
	return all[:min(len(all), ownEvents)], ""
}
