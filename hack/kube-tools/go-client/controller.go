package main

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

const seen = "example.org/seen"

// reconciler notes on each sandbox that it was here, and lets it go when it is deleted.
type reconciler struct{ client client.Client }

func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	object := sandbox("")
	if err := r.client.Get(ctx, request.NamespacedName, object); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	before := object.DeepCopy()
	if object.GetDeletionTimestamp() != nil {
		controllerutil.RemoveFinalizer(object, hold)
	} else {
		controllerutil.AddFinalizer(object, hold)
		annotations := object.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[seen] = "yes"
		object.SetAnnotations(annotations)
	}
	return ctrl.Result{}, r.client.Patch(ctx, object, client.MergeFrom(before))
}

// controller runs one over a cache of one namespace, with its own finalizer.
func (s *suite) controller(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ctrl.SetLogger(logr.Discard())
	manager, err := ctrl.NewManager(s.config, ctrl.Options{
		Metrics: server.Options{BindAddress: "0"},
		Cache:   cache.Options{DefaultNamespaces: map[string]cache.Config{s.namespace: {}}},
		Client:  client.Options{Cache: &client.CacheOptions{Unstructured: true}},
	})
	if err != nil {
		return err
	}
	err = ctrl.NewControllerManagedBy(manager).Named("sandboxes").For(sandbox("")).Complete(&reconciler{manager.GetClient()})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(ctx) }()
	if !manager.GetCache().WaitForCacheSync(ctx) {
		return fmt.Errorf("the cache does not synchronize")
	}

	wanted := sandbox("managed")
	wanted.SetNamespace(s.namespace)
	mutate := func() error {
		wanted.SetLabels(map[string]string{"app": "managed"})
		return nil
	}
	outcome, err := controllerutil.CreateOrUpdate(ctx, manager.GetClient(), wanted, mutate)
	if err != nil {
		return err
	}
	if outcome != controllerutil.OperationResultCreated {
		return fmt.Errorf("it is %s and not created", outcome)
	}
	key := client.ObjectKeyFromObject(wanted)
	get := func(object *unstructured.Unstructured) error { return manager.GetAPIReader().Get(ctx, key, object) }
	err = eventually(10*time.Second, "the controller was here", func() bool {
		object := sandbox("")
		return get(object) == nil && object.GetAnnotations()[seen] == "yes" && controllerutil.ContainsFinalizer(object, hold)
	})
	if err != nil {
		return err
	}
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(sandbox("").GroupVersionKind())
	err = eventually(10*time.Second, "the cache selects by label", func() bool {
		err := manager.GetClient().List(ctx, list, client.InNamespace(s.namespace), client.MatchingLabels{"app": "managed"})
		return err == nil && len(list.Items) == 1
	})
	if err != nil {
		return err
	}
	if err := manager.GetClient().Delete(ctx, wanted); err != nil {
		return err
	}
	err = eventually(10*time.Second, "the controller lets it go", func() bool {
		return apierrors.IsNotFound(get(sandbox("")))
	})
	if err != nil {
		return err
	}
	cancel()
	return <-ended
}

func eventually(limit time.Duration, what string, holds func() bool) error {
	for start := time.Now(); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Since(start) > limit {
			return fmt.Errorf("not within %v: %s", limit, what)
		}
	}
	return nil
}
