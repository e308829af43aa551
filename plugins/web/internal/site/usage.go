package site

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

const (
	// usageKept is how long an answer about a volume's usage is shown to who has asked: each is a call of the driver on
	// the volume's node.
	usageKept = 10 * time.Second
	// askedAtOnce bounds these calls of one page.
	askedAtOnce = 8
	// eventsKept is how long the events of another node are shown to who has asked.
	eventsKept = 5 * time.Second
	// maxKept is how many answers are kept; more, and all are forgotten.
	maxKept = 4096
)

// kept keeps answers for each user.
type kept[A any] struct {
	mu   sync.Mutex
	seen map[keptKey]keptAnswer[A]
}

type keptKey struct {
	user     [sha256.Size]byte // of the secret
	question string
}

type keptAnswer[A any] struct {
	answer A
	at     time.Time
}

// of returns the answer to a question of a user that is younger than age, or asks. An error is not kept.
func (c *kept[A]) of(u user, question string, age time.Duration, ask func() (A, error)) (A, error) {
	key := keptKey{sha256.Sum256([]byte(u.Secret)), question}
	c.mu.Lock()
	seen, ok := c.seen[key]
	c.mu.Unlock()
	if ok && time.Since(seen.at) < age {
		return seen.answer, nil
	}
	answer, err := ask()
	if err != nil {
		return answer, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil || len(c.seen) >= maxKept {
		c.seen = map[keptKey]keptAnswer[A]{}
	}
	c.seen[key] = keptAnswer[A]{answer, time.Now()}
	return answer, nil
}

// fillUsage adds the usage of the rows that are mounted somewhere. It is asked anew when others have the volume.
func (s *Site) fillUsage(ctx context.Context, u user, rows []row) {
	var asking errgroup.Group
	asking.SetLimit(askedAtOnce)
	for n := range rows {
		spec, holders := rows[n].GetSpec(), ""
		for _, c := range rows[n].GetClaims() {
			holders += fmt.Sprint(c.GetNode(), c.GetIndex(), c.GetState(), " ")
		}
		if holders == "" {
			continue
		}
		asking.Go(func() (err error) {
			question := fmt.Sprint(spec.GetNamespace(), "/", spec.GetId(), " ", holders)
			rows[n].Usage, err = s.usages.of(u, question, usageKept, func() (*hostv1.VolumeUsage, error) {
				res, err := s.host.Volumes.GetVolume(ctx, &hostv1.GetVolumeRequest{Namespace: spec.GetNamespace(), Id: spec.GetId()})
				return res.GetUsage(), err
			})
			return err
		})
	}
	_ = asking.Wait() // the usage is not shown
}
