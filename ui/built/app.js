fetch('/api/about').then((answer) => answer.text()).then((text) => {
  document.getElementById('about').textContent = text;
});
