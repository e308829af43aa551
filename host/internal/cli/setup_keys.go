package cli

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/host/internal/doctor"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// Times of setup consul.
const (
	keysTimeout = 15 * time.Second       // for the agent's answer
	keysPause   = 200 * time.Millisecond // between two questions how far a rotation is
	keysPatient = time.Minute            // until the next key signs
)

// signingKeys are the keys with which the agent's cluster signs, as its leader tells.
type signingKeys struct {
	client *api.Client
	is     *hostv1.SigningKeys
}

// newSigningKeys makes a client of the agent on this machine.
func newSigningKeys(a *App, cfg *config.Agent) (*signingKeys, error) {
	secret, err := a.token()
	if err != nil {
		return nil, Usage("%w", err)
	}
	client, err := api.New("unix://"+cfg.Socket, api.WithToken(secret))
	return &signingKeys{client: client}, err
}

// ask reads the keys. rotate begins to replace the one that signs, unless that has begun.
func (k *signingKeys) ask(ctx context.Context, rotate bool) error {
	ctx, cancel := context.WithTimeout(ctx, keysTimeout)
	defer cancel()
	if rotate {
		resp, err := k.client.Secrets.RotateSigningKey(ctx, &hostv1.RotateSigningKeyRequest{})
		if err != nil {
			return err
		}
		k.is = resp.GetKeys()
		return nil
	}
	resp, err := k.client.Secrets.GetSigningKeys(ctx, &hostv1.GetSigningKeysRequest{})
	if err != nil {
		return err
	}
	k.is = resp.GetKeys()
	return nil
}

// pems returns the public keys that Consul must have, and those that it must not have any more, in PEM.
func (k *signingKeys) pems() (wanted, retired []string, err error) {
	signs, err := publicPEM(k.is.GetSigns())
	if err != nil || k.is.GetOther() == nil {
		return []string{signs}, nil, err
	}
	other, err := publicPEM(k.is.GetOther())
	if k.is.GetOtherState() == hostv1.SigningKeyState_SIGNING_KEY_STATE_WITHDRAWN {
		return []string{signs}, []string{other}, err
	}
	return []string{signs, other}, nil, err
}

func publicPEM(k *hostv1.SigningKey) (string, error) {
	var key jose.JSONWebKey
	err := key.UnmarshalJSON(k.GetPublic())
	var der []byte
	if err == nil {
		der, err = x509.MarshalPKIXPublicKey(key.Key)
	}
	if err != nil {
		return "", fmt.Errorf("the agent's public key %s: %w", k.GetId(), err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})), nil
}

// awaitSigns waits until the next key signs, with a bound: the agent goes on without this command.
func (k *signingKeys) awaitSigns(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, keysPatient)
	defer cancel()
	for k.is.GetOtherState() == hostv1.SigningKeyState_SIGNING_KEY_STATE_NEXT {
		select {
		case <-ctx.Done():
			return
		case <-time.After(keysPause):
		}
		_ = k.ask(ctx, false) // while there is no leader, what was known stays
	}
}

// steps describes a rotation that is under way. would: there is none, and -rotate-key would begin one.
func (k *signingKeys) steps(would bool) []doctor.SetupStep {
	other, since := k.is.GetOther().GetId(), k.is.GetSince().AsTime().Format(time.RFC3339)
	step := doctor.SetupStep{Object: "signing key " + k.is.GetSigns().GetId(), Wrong: k.is.GetStuck()}
	why := k.is.GetWaitsFor()
	if why != "" {
		why = ": " + why
	}
	switch k.is.GetOtherState() {
	case hostv1.SigningKeyState_SIGNING_KEY_STATE_NEXT:
		step.Text = fmt.Sprintf("is being replaced by %s since %s%s", other, since, why)
		step.Wrong = true
	case hostv1.SigningKeyState_SIGNING_KEY_STATE_PREVIOUS:
		step.Text = fmt.Sprintf("signs since %s instead of %s%s", since, other, why)
	case hostv1.SigningKeyState_SIGNING_KEY_STATE_WITHDRAWN:
		step.Text = fmt.Sprintf("has replaced %s, which is published no more since %s", other, since)
	default:
		if !would {
			return nil
		}
		step.Text = "would be replaced"
	}
	return []doctor.SetupStep{step}
}
