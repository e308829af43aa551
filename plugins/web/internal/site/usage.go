package site

import (
	"context"
	"crypto/sha256"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

const (
	// usageKept is how long an answer about a volume's usage is shown to who has asked: each is a call of the driver on
	// the volume's node.
	usageKept = 30 * time.Second
	// askedAtOnce bounds these calls of one page.
	askedAtOnce = 8
	// maxUsages bounds how many answers are kept; more, and all are forgotten.
	maxUsages = 4096
)

// usages keeps how full volumes are, for each user.
type usages struct {
	mu   sync.Mutex
	seen map[usageKey]usageSeen
}

type usageKey struct {
	user          [sha256.Size]byte // of the secret
	namespace, id string
}

type usageSeen struct {
	usage *hostv1.VolumeUsage
	at    time.Time
}

// fill adds the usage of the rows that are mounted somewhere.
func (c *usages) fill(ctx context.Context, h host, u user, rows []row) {
	var asking errgroup.Group
	asking.SetLimit(askedAtOnce)
	for n := range rows {
		if len(rows[n].GetClaims()) == 0 {
			continue
		}
		asking.Go(func() error {
			rows[n].Usage = c.of(ctx, h, u, rows[n].GetSpec())
			return nil
		})
	}
	_ = asking.Wait() // nothing returns an error
}

// of returns a volume's usage; nil: it is not known.
func (c *usages) of(ctx context.Context, h host, u user, spec *hostv1.VolumeSpec) *hostv1.VolumeUsage {
	key := usageKey{sha256.Sum256([]byte(u.Secret)), spec.GetNamespace(), spec.GetId()}
	c.mu.Lock()
	seen, ok := c.seen[key]
	c.mu.Unlock()
	if ok && time.Since(seen.at) < usageKept {
		return seen.usage
	}
	res, err := h.Volumes.GetVolume(ctx, &hostv1.GetVolumeRequest{Namespace: spec.GetNamespace(), Id: spec.GetId()})
	if err != nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil || len(c.seen) >= maxUsages {
		c.seen = map[usageKey]usageSeen{}
	}
	c.seen[key] = usageSeen{res.GetUsage(), time.Now()}
	return res.GetUsage()
}
