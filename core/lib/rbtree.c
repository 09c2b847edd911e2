/* Red-black tree: insertion and removal with the usual recolouring cases (CLRS chapter 13). */
#include <weir/rbtree.h>

static bool is_red(const struct rb_node *n)
{
    return n && n->red;
}

static void replace_child(struct rb_tree *t, struct rb_node *parent, struct rb_node *old, struct rb_node *new)
{
    if (!parent)
        t->root = new;
    else if (parent->left == old)
        parent->left = new;
    else
        parent->right = new;
}

/* Turn n downwards to the left (or right); its other child takes its place. */
static void rotate(struct rb_tree *t, struct rb_node *n, bool left)
{
    struct rb_node *up = left ? n->right : n->left;
    struct rb_node *middle = left ? up->left : up->right;
    replace_child(t, n->parent, n, up);
    up->parent = n->parent;
    n->parent = up;
    if (left) {
        up->left = n;
        n->right = middle;
    } else {
        up->right = n;
        n->left = middle;
    }
    if (middle)
        middle->parent = n;
}

void rb_insert(struct rb_tree *t, struct rb_node *n, struct rb_node *parent, struct rb_node **link)
{
    n->parent = parent;
    n->left = n->right = NULL;
    n->red = true;
    *link = n;
    while (is_red(n->parent)) {
        struct rb_node *p = n->parent, *grand = p->parent;
        bool p_left = p == grand->left;
        struct rb_node *uncle = p_left ? grand->right : grand->left;
        if (is_red(uncle)) {
            p->red = uncle->red = false;
            grand->red = true;
            n = grand;
            continue;
        }
        if (n == (p_left ? p->right : p->left)) {
            rotate(t, p, p_left);
            n = p;
            p = n->parent;
        }
        p->red = false;
        grand->red = true;
        rotate(t, grand, !p_left);
    }
    t->root->red = false;
}

/* One black is missing on the path through n (which may be NULL) below parent. */
static void restore_black(struct rb_tree *t, struct rb_node *n, struct rb_node *parent)
{
    while (n != t->root && !is_red(n)) {
        bool left = n == parent->left;
        struct rb_node *sibling = left ? parent->right : parent->left;
        if (sibling->red) {
            sibling->red = false;
            parent->red = true;
            rotate(t, parent, left);
            sibling = left ? parent->right : parent->left;
        }
        struct rb_node *near = left ? sibling->left : sibling->right;
        struct rb_node *far = left ? sibling->right : sibling->left;
        if (!is_red(near) && !is_red(far)) {
            sibling->red = true;
            n = parent;
            parent = n->parent;
            continue;
        }
        if (!is_red(far)) {
            near->red = false;
            sibling->red = true;
            rotate(t, sibling, !left);
            sibling = left ? parent->right : parent->left;
            far = left ? sibling->right : sibling->left;
        }
        sibling->red = parent->red;
        parent->red = false;
        far->red = false;
        rotate(t, parent, left);
        n = t->root;
    }
    if (n)
        n->red = false;
}

/* n has two children: its successor takes its place. Tells where the tree became shorter. */
static void replace_by_successor(struct rb_tree *t, struct rb_node *n, struct rb_node **child,
                                 struct rb_node **parent, bool *black)
{
    struct rb_node *next = n->right;
    while (next->left)
        next = next->left;
    *black = !next->red;
    *child = next->right;
    *parent = next->parent == n ? next : next->parent;
    if (next->parent != n) {
        next->parent->left = *child;
        if (*child)
            (*child)->parent = next->parent;
        next->right = n->right;
        n->right->parent = next;
    }
    replace_child(t, n->parent, n, next);
    next->parent = n->parent;
    next->left = n->left;
    n->left->parent = next;
    next->red = n->red;
}

void rb_remove(struct rb_tree *t, struct rb_node *n)
{
    struct rb_node *child, *parent;
    bool black;
    if (n->left && n->right) {
        replace_by_successor(t, n, &child, &parent, &black);
    } else {
        child = n->left ? n->left : n->right;
        parent = n->parent;
        black = !n->red;
        replace_child(t, parent, n, child);
        if (child)
            child->parent = parent;
    }
    if (black && t->root)
        restore_black(t, child, parent);
}

struct rb_node *rb_first(const struct rb_tree *t)
{
    struct rb_node *n = t->root;
    while (n && n->left)
        n = n->left;
    return n;
}

struct rb_node *rb_last(const struct rb_tree *t)
{
    struct rb_node *n = t->root;
    while (n && n->right)
        n = n->right;
    return n;
}

struct rb_node *rb_next(const struct rb_node *n)
{
    if (n->right) {
        n = n->right;
        while (n->left)
            n = n->left;
        return (struct rb_node *)(uintptr_t)n;
    }
    while (n->parent && n == n->parent->right)
        n = n->parent;
    return n->parent;
}

struct rb_node *rb_prev(const struct rb_node *n)
{
    if (n->left) {
        n = n->left;
        while (n->right)
            n = n->right;
        return (struct rb_node *)(uintptr_t)n;
    }
    while (n->parent && n == n->parent->left)
        n = n->parent;
    return n->parent;
}
