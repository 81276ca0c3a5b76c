// Command go-client uses sandboxes as controllers in Go do: informers, pager, server-side apply, finalizers, and a
// controller of controller-runtime. It knows no type of the server's.
//
//	go-client NAMESPACE
//	go-client data-plane NAMESPACE SANDBOX URL CA
//
// The second form asks for commands and files of a sandbox, with the token in TOKEN.
//
// It prints `ok NAME` for each check and ends with 1 at the first that fails. After the line `restart` it waits for a line
// on its standard input, so that the server can be restarted under its informers.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/pager"
)

const (
	template = "python:3.12"
	hold     = "example.org/hold"
	// Within which an informer has to tell of a change.
	changeWithin = time.Second
	// Within which it has to have found a restarted server.
	restartWithin = 60 * time.Second
)

var sandboxes = schema.GroupVersionResource{Group: "agents.x-k8s.io", Version: "v1beta1", Resource: "sandboxes"}

type suite struct {
	config    *rest.Config
	client    dynamic.ResourceInterface
	namespace string
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if len(os.Args) > 2 && os.Args[1] == "data-plane" {
		dataPlane(ctx, os.Args[2:])
		return
	}
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go-client NAMESPACE")
		os.Exit(2)
	}
	s, err := newSuite(os.Args[1])
	if err != nil {
		fail("set-up", err)
	}
	for _, check := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"informers", s.informers},
		{"pager", s.pager},
		{"apply", s.apply},
		{"finalizers", s.finalizers},
		{"preconditions", s.preconditions},
		{"controller", s.controller},
	} {
		if err := check.run(ctx); err != nil {
			fail(check.name, err)
		}
		fmt.Println("ok", check.name)
	}
}

func fail(name string, err error) {
	fmt.Printf("failed %s: %v\n", name, err)
	os.Exit(1)
}

func newSuite(namespace string) (*suite, error) {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = 200, 200
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &suite{config, client.Resource(sandboxes).Namespace(namespace), namespace}, nil
}

func sandbox(name string) *unstructured.Unstructured {
	container := map[string]any{"name": "main", "image": template}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "agents.x-k8s.io/v1beta1",
		"kind":       "Sandbox",
		"metadata":   map[string]any{"name": name},
		"spec": map[string]any{"podTemplate": map[string]any{"spec": map[string]any{
			"containers": []any{container},
		}}},
	}}
}

func (s *suite) create(ctx context.Context, name string) error {
	_, err := s.client.Create(ctx, sandbox(name), metav1.CreateOptions{})
	return err
}

func (s *suite) delete(ctx context.Context, names ...string) error {
	for _, name := range names {
		if err := s.client.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// events counts what an informer tells of each object.
type events struct {
	mu     sync.Mutex
	counts map[string]int
}

func follow(informer cache.SharedIndexInformer) (*events, error) {
	e := &events{counts: map[string]int{}}
	told := func(what string, object any) {
		name, _ := cache.DeletionHandlingMetaNamespaceKeyFunc(object)
		_, name, _ = cache.SplitMetaNamespaceKey(name)
		e.mu.Lock()
		defer e.mu.Unlock()
		e.counts[what+" "+name]++
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { told("added", object) },
		UpdateFunc: func(_, object any) { told("updated", object) },
		DeleteFunc: func(object any) { told("deleted", object) },
	})
	return e, err
}

func (e *events) count(event string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.counts[event]
}

func (e *events) within(limit time.Duration, event string) error {
	for start := time.Now(); e.count(event) == 0; time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > limit {
			return fmt.Errorf("%q is not told within %v", event, limit)
		}
	}
	return nil
}

// informers follows objects, and their metadata alone, over a restart of the server.
func (s *suite) informers(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	whole, err := dynamic.NewForConfig(s.config)
	if err != nil {
		return err
	}
	partial, err := metadata.NewForConfig(s.config)
	if err != nil {
		return err
	}
	ofObjects := dynamicinformer.NewFilteredDynamicSharedInformerFactory(whole, 0, s.namespace, nil).ForResource(sandboxes).Informer()
	ofMetadata := metadatainformer.NewFilteredSharedInformerFactory(partial, 0, s.namespace, nil).ForResource(sandboxes).Informer()
	if err := s.create(ctx, "first"); err != nil {
		return err
	}
	var told []*events
	for _, informer := range []cache.SharedIndexInformer{ofObjects, ofMetadata} {
		e, err := follow(informer)
		if err != nil {
			return err
		}
		told = append(told, e)
		go informer.RunWithContext(ctx)
	}
	if !cache.WaitForCacheSync(ctx.Done(), ofObjects.HasSynced, ofMetadata.HasSynced) {
		return fmt.Errorf("the informers do not synchronize")
	}
	all := func(limit time.Duration, event string) error {
		for _, e := range told {
			if err := e.within(limit, event); err != nil {
				return err
			}
		}
		return nil
	}
	label := []byte(`{"metadata":{"labels":{"team":"x"}}}`)
	patch := func() error {
		_, err := s.client.Patch(ctx, "second", types.MergePatchType, label, metav1.PatchOptions{})
		return err
	}
	for _, step := range []struct {
		do    func() error
		event string
	}{
		{func() error { return nil }, "added first"},
		{func() error { return s.create(ctx, "second") }, "added second"},
		{patch, "updated second"},
		{func() error { return s.delete(ctx, "second") }, "deleted second"},
	} {
		if err := step.do(); err != nil {
			return err
		}
		if err := all(changeWithin, step.event); err != nil {
			return err
		}
	}

	fmt.Println("restart")
	if !bufio.NewScanner(os.Stdin).Scan() {
		return fmt.Errorf("standard input ends")
	}
	if err := s.create(ctx, "third"); err != nil {
		return err
	}
	if err := all(restartWithin, "added third"); err != nil {
		return err
	}
	for _, e := range told {
		if e.count("deleted first") != 0 || e.count("added first") != 1 {
			return fmt.Errorf("a restart is told as a change")
		}
	}
	return s.delete(ctx, "first", "third")
}

// pager lists in pages.
func (s *suite) pager(ctx context.Context) error {
	const n = 7
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("page-%d", i))
		if err := s.create(ctx, names[i]); err != nil {
			return err
		}
	}
	list := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return s.client.List(ctx, options)
	}
	p := pager.New(list)
	p.PageSize = 2
	found := 0
	err := p.EachListItem(ctx, metav1.ListOptions{}, func(runtime.Object) error { found++; return nil })
	if err != nil {
		return err
	}
	if found != n {
		return fmt.Errorf("%d of %d objects", found, n)
	}
	return s.delete(ctx, names...)
}

func labelled(name, team string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "agents.x-k8s.io/v1beta1",
		"kind":       "Sandbox",
		"metadata":   map[string]any{"name": name, "labels": map[string]any{"team": team}},
	}}
}

// apply is server-side apply by several managers.
func (s *suite) apply(ctx context.Context) error {
	if _, err := s.client.Apply(ctx, "applied", sandbox("applied"), metav1.ApplyOptions{FieldManager: "maker"}); err != nil {
		return err
	}
	if _, err := s.client.Apply(ctx, "applied", labelled("applied", "one"), metav1.ApplyOptions{FieldManager: "one"}); err != nil {
		return err
	}
	_, err := s.client.Apply(ctx, "applied", labelled("applied", "two"), metav1.ApplyOptions{FieldManager: "two"})
	if !apierrors.IsConflict(err) || !apierrors.HasStatusCause(err, metav1.CauseTypeFieldManagerConflict) {
		return fmt.Errorf("no conflict of owners: %v", err)
	}
	applied, err := s.client.Apply(ctx, "applied", labelled("applied", "two"), metav1.ApplyOptions{FieldManager: "two", Force: true})
	if err != nil {
		return err
	}
	if got := applied.GetLabels()["team"]; got != "two" {
		return fmt.Errorf("the label is %q", got)
	}
	return s.delete(ctx, "applied")
}

// finalizers keep an object until they are taken away.
func (s *suite) finalizers(ctx context.Context) error {
	held := sandbox("held")
	held.SetFinalizers([]string{hold})
	if _, err := s.client.Create(ctx, held, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := s.delete(ctx, "held"); err != nil {
		return err
	}
	held, err := s.client.Get(ctx, "held", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if held.GetDeletionTimestamp() == nil {
		return fmt.Errorf("no deletionTimestamp")
	}
	held.SetFinalizers(nil)
	if _, err := s.client.Update(ctx, held, metav1.UpdateOptions{}); err != nil {
		return err
	}
	_, err = s.client.Get(ctx, "held", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("it is still there: %v", err)
	}
	return nil
}

// preconditions see to it that what is deleted and written is what was meant.
func (s *suite) preconditions(ctx context.Context) error {
	if err := s.create(ctx, "meant"); err != nil {
		return err
	}
	other := types.UID("6e3b2cc1-2a36-4f0d-8a5e-8f0ad6a0a4a1")
	err := s.client.Delete(ctx, "meant", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &other}})
	if !apierrors.IsConflict(err) {
		return fmt.Errorf("another uid is deleted: %v", err)
	}
	stale, err := s.client.Get(ctx, "meant", metav1.GetOptions{})
	if err != nil {
		return err
	}
	fresh := stale.DeepCopy()
	fresh.SetLabels(map[string]string{"a": "b"})
	if _, err := s.client.Update(ctx, fresh, metav1.UpdateOptions{}); err != nil {
		return err
	}
	if _, err := s.client.Update(ctx, stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		return fmt.Errorf("a stale object is stored: %v", err)
	}
	if err := s.create(ctx, "meant"); !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("a name is given twice: %v", err)
	}
	return s.delete(ctx, "meant")
}
